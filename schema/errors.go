package schema

// Outcome is what an extension error says of the call. It is what a client
// acts on; a reason that the client does not know is handled by its outcome
// alone (SEP, "Errors").
type Outcome string

const (
	// OutcomeNotRun: this attempt did not run. It says nothing of attempts
	// that were lost before or are still on their way.
	OutcomeNotRun Outcome = "notRun"
	// OutcomeNeverRan: no attempt with this key ran or ever will.
	OutcomeNeverRan Outcome = "neverRan"
	// OutcomeInProgress: an attempt with this key is running.
	OutcomeInProgress Outcome = "inProgress"
	// OutcomeCompleted: the tool ran to its end; the result is not to be had.
	OutcomeCompleted Outcome = "completed"
	// OutcomeUnknown: an attempt started and how it ended is not known.
	OutcomeUnknown Outcome = "unknown"
)

// Reason names why the extension refused or could not answer a call.
type Reason string

// The reasons of the SEP's table, in its order.
const (
	ReasonKeyMismatch       Reason = "keyMismatch"
	ReasonKeyRequired       Reason = "keyRequired"
	ReasonKeyUnsupported    Reason = "keyUnsupported"
	ReasonKeyInvalid        Reason = "keyInvalid"
	ReasonPrincipalUnknown  Reason = "principalUnknown"
	ReasonNamespaceNotHeld  Reason = "namespaceNotHeld"
	ReasonNamespaceClosed   Reason = "namespaceClosed"
	ReasonCapacityExceeded  Reason = "capacityExceeded"
	ReasonStoreUnavailable  Reason = "storeUnavailable"
	ReasonStillRunning      Reason = "stillRunning"
	ReasonResultUnavailable Reason = "resultUnavailable"
	ReasonNoEffect          Reason = "noEffect"
	ReasonOutcomeUnknown    Reason = "outcomeUnknown"
)

// ReasonInfo is one row of the SEP's table of reasons.
type ReasonInfo struct {
	Reason  Reason
	Outcome Outcome
	// When says, in one sentence, when a server answers so.
	When string
}

// Reasons returns the SEP's table of reasons, in its order. The slice is the
// caller's.
func Reasons() []ReasonInfo {
	return []ReasonInfo{
		{ReasonKeyMismatch, OutcomeNotRun, "The key is known with another tool name or other arguments; the earlier record is untouched."},
		{ReasonKeyRequired, OutcomeNotRun, "The tool demands a key and the request has none."},
		{ReasonKeyUnsupported, OutcomeNotRun, "The tool takes no keys; it is called without one, and never re-sent on a loss."},
		{ReasonKeyInvalid, OutcomeNotRun, "The key is malformed."},
		{ReasonPrincipalUnknown, OutcomeNotRun, "The request is authenticated, but its subject cannot be told."},
		{ReasonNamespaceNotHeld, OutcomeNotRun, "The key's namespace is not one that this server holds records for; keyNamespace gives the current one."},
		{ReasonNamespaceClosed, OutcomeNeverRan, "The namespace is held complete, takes no new keys, and this key is not in it; keyNamespace gives the current one."},
		{ReasonCapacityExceeded, OutcomeNotRun, "The store cannot promise to remember this key; retryAfterMs says when to ask again."},
		{ReasonStoreUnavailable, OutcomeNotRun, "The store could not be asked before running; retryAfterMs says when to ask again."},
		{ReasonStillRunning, OutcomeInProgress, "An earlier attempt runs and this server will not wait longer; retryAfterMs says when to ask again."},
		{ReasonResultUnavailable, OutcomeCompleted, "The tool ran and finished; its result is no longer, or was never, kept."},
		{ReasonNoEffect, OutcomeNeverRan, "The tool itself said that it had no effect; that is recorded and replayed."},
		{ReasonOutcomeUnknown, OutcomeUnknown, "An attempt started and its end was never recorded."},
	}
}

// OutcomeOf returns the outcome that the SEP's table gives for a reason, and
// whether the table has that reason.
func OutcomeOf(r Reason) (Outcome, bool) {
	for _, row := range Reasons() {
		if row.Reason == r {
			return row.Outcome, true
		}
	}
	return "", false
}

// ErrorData is the data member of a JSON-RPC error with code [ErrorCode].
type ErrorData struct {
	// Reason names the cause. A client may meet reasons that it does not know.
	Reason Reason `json:"reason" jsonschema:"minLength=1" jsonschema_description:"Names the cause. Readers handle a reason that they do not know by its outcome alone."`

	// Outcome says what became of the call.
	Outcome Outcome `json:"outcome" jsonschema:"enum=notRun,enum=neverRan,enum=inProgress,enum=completed,enum=unknown" jsonschema_description:"What became of the call. It is what a client acts on."`

	// RetryAfterMs asks the client to wait this many milliseconds before it
	// sends the same key again. Nil when the server does not invite that.
	RetryAfterMs *int64 `json:"retryAfterMs,omitempty" jsonschema:"minimum=0" jsonschema_description:"Milliseconds to wait before the same key is sent again."`

	// KeyNamespace is the server's current namespace, on namespaceNotHeld and
	// namespaceClosed.
	KeyNamespace string `json:"keyNamespace,omitempty" jsonschema:"minLength=1,maxLength=64,pattern=^[A-Za-z0-9_~:-]+$" jsonschema_description:"The server's current namespace, on namespaceNotHeld and namespaceClosed."`
}
