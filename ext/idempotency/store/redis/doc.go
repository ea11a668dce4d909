// Package redis is the store on a Redis or Valkey server, which any number of
// server processes share.
//
// It promises at most one run per key, whatever becomes of the processes that
// use it and of the server itself: a process that dies leaves a lease, whose
// end makes the outcome unknown, and a server that may have lost records gets
// a new namespace, so that no key from before runs again. Every step is one
// Lua script and one round trip.
//
//	client := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
//	records, err := redis.Open(ctx, client, nil)
//	if err != nil {
//		return err
//	}
//	defer records.Close()
//	idem := idempotency.New(&idempotency.Options{Store: records})
//
// It does not promise that a call survives a restart of the Redis server,
// unless [Options.KeepOverRestarts] is set and true. It has no transactional
// tools: an effect in Redis and its record are not committed together.
//
// # Restarts, failovers, restored copies
//
// A server process has a replication id (master_replid) that no other has: it
// is drawn at the start and again at every promotion. It is kept with the
// records and compared in every step, by the same script. When it differs, the
// records may be those of a process that died before its last writes reached
// the disk, or of a master whose last writes never reached this replica; so
// nothing from before is held any more, and a new namespace begins. Retries of
// calls from before are then answered namespaceNotHeld, which their callers
// read as unknown. The same happens after FLUSHALL, and when the records of a
// namespace are gone by eviction or by hand. Keys that a tool takes from its
// arguments have no namespace that could tell: they hold for as long as the
// records do.
//
// This asks nothing of the server's persistence. With none at all the store is
// as safe; it is only that calls under way do not survive a restart, which is
// also all that WAIT or replicas could change. After a failover in which the
// old master lives on, each side runs the keys of its own namespace and refuses
// those of the other. A cluster that moves the slot to another master changes
// the namespace as well, and so does a master that has been without replicas
// for repl-backlog-ttl (set that to 0 to keep it).
//
// [Options.KeepOverRestarts] goes on with the records after a restart. The
// server then has to have on its disk what it acknowledged, which Open and
// every first step after a restart check with CONFIG GET:
//
//	appendonly yes
//	appendfsync always
//	no-appendfsync-on-rewrite no
//
// With appendfsync everysec a power failure takes about a second of
// acknowledged writes, a snapshot (save) alone takes minutes, and neither tells;
// both are refused. A server that was promoted, as INFO says, starts over in
// this mode too. What cannot be seen from inside the store is believed:
//
//   - that nobody changes these settings in the running server;
//   - that the server does not fail over. Without the option a failover is
//     always noticed; with it, one whose new master is restarted before any
//     step reaches it is not. A ClusterClient is refused; do not use the option
//     with Sentinel;
//   - that nobody puts an older copy of the server's files back. A process
//     that has seen later records notices (every step carries how far it saw the
//     store to be), a process that has not does not. After restoring a backup
//     delete the keys that begin with "{Prefix}:" before anybody connects.
//
// # What the server needs
//
// The maxmemory-policy must not be one of allkeys-…, which would forget whole
// namespaces to make room; Open refuses those. Without memory the server
// refuses new keys (capacityExceeded), while ends of calls are recorded and
// replays go on. A record takes about 200 bytes, an outcome about 110 more than
// its own, so that the defaults ask for some 650 MB when they are used up.
//
// The user of the client needs these rights, and config|get with
// KeepOverRestarts:
//
//	~{idempotency}:* &{idempotency}:* +eval +evalsha +info +time +publish
//	+subscribe +unsubscribe +ping +hget +hmget +hset +hdel +hincrby +hstrlen
//	+hscan +rpush +lpop +unlink +del
//
// All keys and channels begin with "{Prefix}:" and so lie in one slot: in a
// cluster one node serves the store, which is what makes a step atomic. Use
// several prefixes, for example one for each MCP server, to spread over nodes.
// No key has a time to live, since no clock of a single key decides anything.
// A store that is not used any more stays until its keys are deleted.
//
// # How records are kept
//
// A small hash has the state: which namespaces are held, with their counters.
// A namespace has one hash of its records, one of its outcomes, one of how much
// each principal has, and the order in which outcomes may be dropped. Redis
// hashes grow without a pause and take some four billion fields; dropping one
// is one UNLINK, whose memory is freed in the background. A namespace is dropped
// in the script that finds it due: its name leaves the state and its hashes go,
// both or neither. While calls are open in a namespace without a pause, it may
// be held longer by the longest lease that any of them had.
//
// The clock is the server's, and never goes back: a step back is taken out when
// a step notices it. A step forward ends leases and namespaces early, which
// makes outcomes unknown or not held, and nothing run twice.
//
// Those who wait for a run of another process subscribe to a channel of its
// record, over one connection for each Store; the script that ends the run
// publishes. [Options.PollInterval] is the safety net.
//
// [Store.List] and [Store.DeleteOutcomes] walk over all records of the
// namespaces, some hundred in a step.
//
// # Costs
//
// A step is one round trip and some 50 µs of the server's one thread, most of
// it Lua, against 2 µs for a SET; so one server does some ten thousand calls a
// second. Against a bare SET NX and SET, which compare and fence nothing, calls
// one after the other have six tenths of the throughput on loopback with
// appendfsync always, and nine tenths with a millisecond of network between.
// What a call costs does not depend on how many records there are.
package redis
