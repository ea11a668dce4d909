// Package memory is the store that lives and dies with its process.
//
// It promises at most one run per key for as long as the process lives, in
// bounded memory: results are a cache, and a result that is dropped leaves a
// tombstone behind, so that the key still does not run again. When not even
// tombstones fit, new keys are refused and no old key is forgotten.
//
// It does not survive a crash, and says so: every store has a namespace of its
// own, so that a key from before the crash is answered namespaceNotHeld and is
// not run again. A copy of a running process image (a cloned virtual machine)
// cannot be told from the original from inside; call [Store.Reincarnate] in
// the copy before it serves.
//
// Namespaces rotate by the monotonic clock, so that steps of the wall clock
// change nothing. Rotation needs no goroutine: it happens in the calls.
package memory
