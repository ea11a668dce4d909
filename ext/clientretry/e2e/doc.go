// Package e2e tests ext/clientretry from outside, through real sockets and
// real processes, against a scripted server that shares no code with it and
// against the SDK's own server. It has no code but tests.
package e2e
