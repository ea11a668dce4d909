// Package fault loses answers on purpose. It stands between a client and a
// server, forwards what they say, and makes chosen `tools/call` requests meet
// a [Kind] of fault: the connection is reset, the stream ends early, an event
// is broken, the server process is killed.
//
// It promises three things. A fault "after the work" is performed only when
// the server's whole answer has been read, so the work is finished and the
// caller cannot know. A call that meets no fault streams through untouched,
// event by event. Every request is recorded ([Call]) with what became of it
// and, where it was lost, when.
//
// It does not promise to look like a particular proxy, it never sends a
// request twice, and it has no opinion on what a client should do.
//
// Over HTTP a [Layer] is an [net/http.Handler] around a reverse proxy, and
// [Serve] gives it a port:
//
//	path, err := fault.Serve("http://127.0.0.1:8080/mcp", &fault.Options{
//		Rules: fault.Rules{{Tool: "charge", Nth: 1, Action: fault.Action{Kind: fault.Reset}}},
//	})
//	if err != nil { … }
//	defer path.Close()
//	// Point the client at path.URL; read path.Calls() afterwards.
//
// On stdio a [Stdio] starts the server process and sits on its pipes. Without
// rules both are recorders only.
package fault
