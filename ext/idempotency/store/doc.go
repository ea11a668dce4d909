// Package store defines what remembers idempotency records: the [Store]
// interface, the values that cross it, and the life cycle of a record as a
// table ([Transitions]).
//
// The middleware in ext/idempotency decides; a store remembers. A store never
// interprets a result, never sleeps, and each of its methods is one atomic
// step. Implementations live in packages of their own below this one, so that
// nobody links a driver that they do not use; ext/idempotency/storetest checks
// that an implementation keeps the contract.
package store
