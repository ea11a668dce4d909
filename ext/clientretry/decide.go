package clientretry

import "github.com/mcp-idempotency/mcp-idempotency/schema"

// eventKind is what an attempt ended in, as far as the client can tell. The
// zero value is the ambiguous one.
type eventKind uint8

const (
	// lost: the attempt may have run; its response is not to be had.
	lost eventKind = iota
	// tooLarge: lost, and every other copy of the response would be as large.
	tooLarge
	// unlisted: lost, and with a status after which nothing is sent again.
	unlisted
	// cancelled: the caller's context ended after the attempt was sent.
	cancelled
	// cancelledBefore: the caller's context ended before it was sent.
	cancelledBefore
	// notSent: the request cannot have reached the server.
	notSent
	// dialFailed: the connection is dead, and making another one failed.
	dialFailed
	// noConnection: nothing can be sent, now or later.
	noConnection
	// sessionEnded: HTTP 404 for a session that was known.
	sessionEnded
	// refused: another HTTP status without a JSON-RPC body.
	refused
	// otherIdentity: not sent, because it would go out as somebody else.
	otherIdentity
	// undeclared: not sent, because the server declares no capability now.
	undeclared
	// pathLost: not sent, because the path check was lost.
	pathLost
	// pathUnproven: not sent, because keys do not reach an extended server.
	pathUnproven
	// tooLate: not sent, because the server may have forgotten the key.
	tooLate
	// From here on there is an answer.
	//
	// marked: a result or an error of the tool's own, with the marker.
	marked
	// unmarkedResult and unmarkedError: an answer without the marker. An error
	// of a handler of this client's, between two rounds, is one too.
	unmarkedResult
	unmarkedError
	// undecodable: a well-formed result that the SDK cannot make use of.
	undecodable
	// The extension's errors, by outcome; four by reason too. waiting: with
	// retryAfterMs.
	extNotRun
	extNotRunWaiting
	extKeyUnsupported
	extNotHeld
	extClosed
	extNeverRan
	extRunning
	extRunningWaiting
	extCompleted
	extUnknown
)

// action is what to do next.
type action uint8

const (
	// giveUnknown: report an unknown outcome.
	giveUnknown action = iota
	// give: return what the server said.
	give
	// giveDuplicate: return it and say that the tool may have run twice.
	giveDuplicate
	// giveNotRun: report that the call did not run.
	giveNotRun
	// giveLostResult: report that it ran and the result is lost.
	giveLostResult
	// resend: the same again, after proof of the path if an attempt was lost.
	resend
	// remint: a new key in the namespace that the server named.
	remint
	// dropKey: the same without a key.
	dropKey
)

// rule is one row of the decision table.
type rule struct {
	says string
	// What follows for a call without a key; for one with a key of which no
	// attempt can have run; and for one of which an attempt may have run.
	unkeyed, fresh, open action
	// opens: from here on the call may have run.
	opens bool
	// trusts: the answer says that nothing ran, and that holds only if nothing
	// on the way has delivered the request twice.
	trusts bool
}

// rules is the client's decision (SEP, "Client rules"), one row an event.
// Bounds (attempts, deadline, retention) come on top: where they forbid to send
// again, an open call is unknown and any other was not run.
var rules = [...]rule{
	lost:              {says: "response lost, 408/429/502/503/504, 500 without JSON-RPC body, -32000/-32001 without marker", unkeyed: giveUnknown, fresh: resend, open: resend, opens: true},
	tooLarge:          {says: "response larger than the client reads", unkeyed: giveUnknown, fresh: giveUnknown, open: giveUnknown, opens: true},
	unlisted:          {says: "another 5xx without JSON-RPC body", unkeyed: giveUnknown, fresh: giveUnknown, open: giveUnknown, opens: true},
	cancelled:         {says: "the caller gave up after sending", unkeyed: giveUnknown, fresh: giveUnknown, open: giveUnknown, opens: true},
	cancelledBefore:   {says: "the caller gave up before sending", unkeyed: giveNotRun, fresh: giveNotRun, open: giveUnknown},
	notSent:           {says: "no connection to the server", unkeyed: giveNotRun, fresh: resend, open: resend},
	dialFailed:        {says: "connecting again failed", unkeyed: giveNotRun, fresh: resend, open: resend},
	noConnection:      {says: "the connection is dead and cannot be made again", unkeyed: giveNotRun, fresh: giveNotRun, open: giveUnknown},
	sessionEnded:      {says: "404 that ends the session (connect again)", unkeyed: giveNotRun, fresh: resend, open: resend, trusts: true},
	refused:           {says: "401, 403 or another status without JSON-RPC body", unkeyed: giveNotRun, fresh: giveNotRun, open: giveUnknown, trusts: true},
	otherIdentity:     {says: "the re-send would have another identity", unkeyed: giveNotRun, fresh: giveNotRun, open: giveUnknown},
	undeclared:        {says: "connected again, and the capability is no longer declared", unkeyed: giveNotRun, fresh: giveNotRun, open: giveUnknown},
	pathLost:          {says: "path check lost", unkeyed: giveUnknown, fresh: resend, open: resend},
	pathUnproven:      {says: "path check answered by anything but keyInvalid", unkeyed: giveUnknown, fresh: giveUnknown, open: giveUnknown},
	tooLate:           {says: "retentionMs has passed since the round was first sent", unkeyed: giveUnknown, fresh: giveUnknown, open: giveUnknown},
	marked:            {says: "marked result, marked error of the tool", unkeyed: give, fresh: give, open: give},
	unmarkedResult:    {says: "result without marker", unkeyed: give, fresh: give, open: giveDuplicate},
	unmarkedError:     {says: "JSON-RPC error without marker", unkeyed: give, fresh: give, open: giveUnknown},
	undecodable:       {says: "result that cannot be decoded", unkeyed: giveLostResult, fresh: giveLostResult, open: giveLostResult, opens: true},
	extNotRun:         {says: "notRun", unkeyed: giveNotRun, fresh: giveNotRun, open: giveUnknown, trusts: true},
	extNotRunWaiting:  {says: "notRun with retryAfterMs", unkeyed: giveNotRun, fresh: resend, open: resend, trusts: true},
	extKeyUnsupported: {says: "keyUnsupported", unkeyed: giveNotRun, fresh: dropKey, open: giveUnknown, trusts: true},
	extNotHeld:        {says: "namespaceNotHeld", unkeyed: giveNotRun, fresh: remint, open: resend, trusts: true},
	extClosed:         {says: "namespaceClosed", unkeyed: giveNotRun, fresh: remint, open: remint},
	extNeverRan:       {says: "neverRan, noEffect included", unkeyed: giveNotRun, fresh: giveNotRun, open: giveNotRun},
	extRunning:        {says: "inProgress", unkeyed: giveUnknown, fresh: giveUnknown, open: giveUnknown, opens: true},
	extRunningWaiting: {says: "inProgress with retryAfterMs", unkeyed: giveUnknown, fresh: resend, open: resend, opens: true},
	extCompleted:      {says: "completed", unkeyed: giveLostResult, fresh: giveLostResult, open: giveLostResult, opens: true},
	extUnknown:        {says: "unknown, or an outcome that the client does not know", unkeyed: giveUnknown, fresh: giveUnknown, open: giveUnknown, opens: true},
}

// history is what decide knows of the call before the event.
type history struct {
	// keyed: the attempt carried a key.
	keyed bool
	// again: the caller's own word that the tool may be re-sent unkeyed.
	again bool
	// minted: the key was made here for this call and never handed out.
	minted bool
	// strict: trust no refusal to mean that nothing ran.
	strict bool
	// lost: an attempt may have run and no outcome has come since.
	lost bool
	// begun: a round of a multi round-trip call ran, so that something may
	// have happened even though nothing was lost.
	begun bool
	// resent: the attempt is not the call's first.
	resent bool
	// tried: the key was made anew after namespaceNotHeld and has not been
	// sent twice: it is tried once more before another is made, since another
	// replica may hold its namespace.
	tried bool
	// namespace: the server's error names a namespace to mint in.
	namespace bool
}

// open: the call may have run.
func (h history) open() bool { return h.lost || h.begun }

// decision is an action and what the event makes of history.lost.
type decision struct {
	action action
	lost   bool
}

// decide looks the event up in the table and applies the conditions that the
// table has no columns for.
func decide(h history, e eventKind) decision {
	r := rules[e]
	distrusted := r.trusts && h.strict && h.keyed
	d := decision{lost: h.lost || r.opens || distrusted}
	open := h.open() || distrusted
	switch {
	case !h.keyed && h.again && e < marked: // nobody has answered
		d.action = pick(open, r.fresh, r.open)
	case !h.keyed:
		d.action = r.unkeyed
		if e == unmarkedResult && open {
			d.action = giveDuplicate
		}
		if d.action == giveNotRun && open {
			d.action = giveUnknown
		}
	default:
		d.action = pick(open, r.fresh, r.open)
	}
	return h.refine(d, e)
}

func pick(open bool, fresh, other action) action {
	if open {
		return other
	}
	return fresh
}

// refine applies what depends on more than whether the call is open.
func (h history) refine(d decision, e eventKind) decision {
	switch e {
	case unmarkedResult:
		if h.keyed && h.resent {
			d.action = giveDuplicate
		}
	case unmarkedError:
		if h.keyed && !h.lost { // a round that ran explains the error: it is the call's
			d.action = give
		}
	case undeclared:
		if h.keyed && !h.minted { // it may have run while the server took keys
			d = decision{giveUnknown, true}
		}
	case extNotHeld:
		switch {
		case !h.keyed:
		case !h.minted: // it may have run elsewhere, in somebody else's hands
			d = decision{resend, true}
		case d.action == remint && (h.tried || !h.namespace):
			d.action = resend
		}
	case extClosed:
		switch {
		case !h.keyed:
		case h.begun: // a round of a key that never ran? One of the two is wrong
			d = decision{giveUnknown, true}
		case h.minted && h.namespace:
			d = decision{remint, false}
		default:
			d = decision{giveNotRun, false}
		}
	case extNeverRan:
		d.lost = false
	case extKeyUnsupported:
		if d.action == dropKey && !h.minted {
			d.action = giveNotRun
		}
	}
	return d
}

// extensionEvent sorts an extension error. It goes by the outcome; a reason
// counts only where it says more, and with the outcome that it belongs to.
func extensionEvent(data schema.ErrorData) eventKind {
	asked := data.RetryAfterMs != nil && *data.RetryAfterMs >= 0
	switch data.Outcome {
	case schema.OutcomeNotRun:
		switch {
		case data.Reason == schema.ReasonNamespaceNotHeld:
			return extNotHeld
		case data.Reason == schema.ReasonKeyUnsupported:
			return extKeyUnsupported
		case asked:
			return extNotRunWaiting
		}
		return extNotRun
	case schema.OutcomeNeverRan:
		if data.Reason == schema.ReasonNamespaceClosed {
			return extClosed
		}
		return extNeverRan
	case schema.OutcomeInProgress:
		if asked {
			return extRunningWaiting
		}
		return extRunning
	case schema.OutcomeCompleted:
		return extCompleted
	}
	return extUnknown
}

// provesPath reports whether an extension error that answers a keyed request
// shows that its key arrived. keyRequired shows the contrary, a request can be
// refused as principalUnknown without its key being looked at, and what a
// reason that the client does not know shows is not known.
func provesPath(data schema.ErrorData) bool {
	outcome, known := schema.OutcomeOf(data.Reason)
	return known && outcome == data.Outcome &&
		data.Reason != schema.ReasonKeyRequired && data.Reason != schema.ReasonPrincipalUnknown
}
