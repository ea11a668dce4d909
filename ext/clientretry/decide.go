package clientretry

import (
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// eventKind is how an attempt ended, as far as the client can tell. The zero
// value is the ambiguous one.
type eventKind uint8

const (
	// lost: the attempt may have run; its response is not to be had.
	lost eventKind = iota
	// notSent: the request cannot have reached the server.
	notSent
	// sessionEnded: HTTP 404 for a session that was known.
	sessionEnded
	// refused: another HTTP status without a JSON-RPC body.
	refused
	// marked: a result or an error of the tool's own, with the marker.
	marked
	// unmarkedResult and unmarkedError: an answer without the marker.
	unmarkedResult
	unmarkedError
	// extension: an error of the extension.
	extension
)

// event is what an attempt ended in.
type event struct {
	kind eventKind
	data schema.ErrorData // for extension
	// wait is the server's Retry-After or retryAfterMs; negative for none.
	wait time.Duration
}

// history is what decide knows of the call before the event.
type history struct {
	// declared: the server declares the capability and the call has a key.
	declared bool
	// again: the caller's own word that the tool may be re-sent unkeyed.
	again bool
	// minted: the key was made here for this call and never handed out.
	minted bool
	// strict: never make a second key.
	strict bool
	// open: an earlier attempt may have run.
	open bool
	// fresh: the key was made anew after the last namespaceNotHeld, so that
	// the same key is tried once more before another is made.
	fresh bool
}

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
	// resend: the same key again, after proof of the path if one was lost.
	resend
	// remint: a new key in the namespace that the server named.
	remint
)

// decision is an action and what it does to the history.
type decision struct {
	action action
	// open: from now on the call may have run.
	open bool
}

// decide is the client's decision (SEP, "Client rules"): what follows from how
// an attempt ended. Bounds (attempts, deadline, retention) are the caller's: a
// resend or remint that they forbid becomes giveUnknown when the call is open
// and giveNotRun when it is not.
func decide(h history, e event) decision {
	switch e.kind {
	case marked:
		return decision{give, h.open}
	case unmarkedResult:
		if h.open {
			return decision{giveDuplicate, true}
		}
		return decision{give, false}
	case unmarkedError:
		if h.open {
			return decision{giveUnknown, true}
		}
		return decision{give, false}
	case notSent:
		return h.sendAgain(h.open, giveNotRun)
	case sessionEnded:
		return h.sendAgain(h.open || h.declared, giveNotRun)
	case refused:
		if h.open {
			return decision{giveUnknown, true}
		}
		return decision{giveNotRun, false}
	case extension:
		return h.decideExtension(e)
	}
	return h.sendAgain(true, giveUnknown)
}

// sendAgain re-sends where that is allowed, else ends the call: with unknown
// if it is open.
func (h history) sendAgain(open bool, otherwise action) decision {
	switch {
	case h.declared, h.again:
		return decision{resend, open}
	case open:
		return decision{giveUnknown, true}
	}
	return decision{otherwise, false}
}

// decideExtension acts on the outcome, and on two reasons that say more.
func (h history) decideExtension(e event) decision {
	switch e.data.Outcome {
	case schema.OutcomeCompleted:
		return decision{giveLostResult, true}
	case schema.OutcomeNeverRan:
		if e.data.Reason == schema.ReasonNamespaceClosed && h.minted && e.data.KeyNamespace != "" {
			return decision{remint, false}
		}
		return decision{giveNotRun, false}
	case schema.OutcomeInProgress:
		if e.wait >= 0 {
			return decision{resend, true}
		}
		return decision{giveUnknown, true}
	case schema.OutcomeNotRun:
		if e.data.Reason == schema.ReasonNamespaceNotHeld {
			return h.notHeld(e)
		}
		if e.wait >= 0 {
			return decision{resend, h.open}
		}
		if h.open {
			return decision{giveUnknown, true}
		}
		return decision{giveNotRun, false}
	}
	return decision{giveUnknown, true}
}

// notHeld answers namespaceNotHeld. Only a key that nobody else can have sent
// may be given up for another; every other one may have run elsewhere.
func (h history) notHeld(e event) decision {
	if h.open || !h.minted || h.strict {
		return decision{resend, true}
	}
	if h.fresh || e.data.KeyNamespace == "" {
		return decision{resend, false}
	}
	return decision{remint, false}
}
