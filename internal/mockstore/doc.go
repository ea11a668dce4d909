// Package mockstore is a mock of the record store, for tests that make single
// steps of it fail.
package mockstore

//go:generate go tool mockgen -package mockstore -source ../../ext/idempotency/store/store.go -destination store.go
