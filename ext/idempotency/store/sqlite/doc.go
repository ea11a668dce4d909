// Package sqlite keeps idempotency records in a SQLite file: they survive the
// process and the machine, and several processes on one machine can share
// them. The driver is written in Go; nothing else has to be installed.
//
// # What it promises
//
// A key whose reservation was acknowledged never runs again, whatever is killed
// when: every step is part of one immediate transaction, and it is on disk
// before the caller hears of it (write-ahead log, synchronous=FULL). What the
// store cannot do (a full disk, a locked or broken file) is an error, upon
// which nothing runs. A run that dies is of unknown outcome once its lease has
// passed; it is not run again, unless it was transactional.
//
// When the file is not what it was, the namespace changes, and old keys are
// refused instead of run. See below for how this is noticed, and when not.
//
// # What it does not promise
//
// It is not for network file systems, which do not lock as SQLite needs it;
// [Open] refuses where it can tell. It is not for several machines. A disk that
// says that it has written and has not can lose what was acknowledged.
//
// # Files
//
// Beside the database, records.db, SQLite keeps its log and an index of it,
// records.db-wal and records.db-shm. This package adds records.db.witness, a few
// lines of text on what the database must not fall behind. The database may
// hold other tables: those of this package start with idempotency_. All files are made readable by their
// owner only. Keys and principals are stored as they are; outcomes are too,
// unless [Options.Seal] encrypts them.
//
// # Restored backups
//
// A backup that is put back lacks the runs since then, which must not run
// again. Each process compares the database with the witness when it opens it
// and at every step:
//
//   - a copy put over the database, or moved into its place, that lacks any
//     acknowledged run (or deletion) is noticed, also if it was taken one run
//     ago, and also by the processes that have the old file open, when it was
//     moved;
//   - a database that was moved into place is noticed even if it lacks
//     nothing, and so are copies of database and witness together: both know
//     which file they are, by its number (not on Windows);
//   - a witness that is missing, damaged or of another store vouches for
//     nothing.
//
// In each case all old records are dropped and a new namespace begins, which
// [Options.Logger] is told of. A kill or a power failure never looks like one
// of these. What is not noticed:
//
//   - a database and a witness that are both put back in place, into the same
//     files, as the snapshot of a file system or of a virtual machine does:
//     keep the witness on another volume ([Options.WitnessPath]), and never
//     in the backup;
//   - a copy put back after a power failure that was taken during the last 256
//     runs before it: the witness is synced that often, and otherwise written
//     without waiting for the disk;
//   - a copy put over a database that is open, or beside the log of a later
//     state: SQLite calls that corruption. Stop the processes and remove the
//     -wal and -shm files first, or move the copy into place.
//
// To take a backup of an open store, use VACUUM INTO or SQLite's backup
// command.
//
// # Time
//
// Leases and retention pass by a clock of the store's own, which goes on with
// the monotonic clock of the processes and never goes back. A step of the
// machine's clock changes nothing while a process has the file open. When
// none has, the machine's clock tells how much time has passed; if it was set
// back meanwhile, none has, and if it was set forward too far, namespaces are
// dropped early, which is safe and unfriendly. A machine that sleeps stops the
// clock.
//
// # Cost
//
// A call is two commits, each one sync of the log. Steps of one process that
// wait at the same time share one. Namespaces have tables of their own, which
// are removed as a whole. The file does not shrink: what is freed is used
// again.
package sqlite
