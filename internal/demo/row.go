package demo

// Fault is how the answer is lost. All of them come after the charge.
type Fault string

// The faults, in the order of the table.
const (
	FaultEOF         Fault = "eof"
	FaultReset       Fault = "reset"
	FaultBrokenEvent Fault = "broken-event"
	FaultStatus502   Fault = "502-after-work"
	FaultStdioKill   Fault = "stdio-kill"
	FaultTimeout     Fault = "timeout"
)

// Faults returns all faults in order.
func Faults() []Fault {
	return []Fault{FaultEOF, FaultReset, FaultBrokenEvent, FaultStatus502, FaultStdioKill, FaultTimeout}
}

// Stack is a client and the server that it talks to.
type Stack string

// The stacks, in the order of the table.
const (
	// StackPlain is the SDK's client with a deadline, against a plain server.
	StackPlain Stack = "plain"
	// StackLoop adds the loop that people write by hand.
	StackLoop Stack = "loop"
	// StackRetryPlain is clientretry against a plain server.
	StackRetryPlain Stack = "retry-plain"
	// StackRetryExtended is clientretry against an extended server.
	StackRetryExtended Stack = "retry-extended"
)

// Stacks returns all stacks in order.
func Stacks() []Stack {
	return []Stack{StackPlain, StackLoop, StackRetryPlain, StackRetryExtended}
}

// Outcome is what the caller was told.
type Outcome string

const (
	// OutcomeResult: the tool's result.
	OutcomeResult Outcome = "result"
	// OutcomeReplayed: the tool's result, from the server's record.
	OutcomeReplayed Outcome = "replayed"
	// OutcomeFailed: the tool definitely did not run.
	OutcomeFailed Outcome = "failed"
	// OutcomeUnknown: it may have run, said in so many words.
	OutcomeUnknown Outcome = "unknown"
	// OutcomeError: an error that does not say whether the tool ran.
	OutcomeError Outcome = "error"
)

// Row is one payment: what it met, what it cost, what its caller was told.
type Row struct {
	Fault Fault `json:"fault"`
	Stack Stack `json:"stack"`
	// ToolCalls counts the server's log lines for the tool.
	ToolCalls int `json:"toolCalls"`
	// Charges counts the lines of the ledger.
	Charges int     `json:"charges"`
	Outcome Outcome `json:"outcome"`
	// SettleMs is the time from the loss until the caller was told, in
	// milliseconds, rounded.
	SettleMs int64 `json:"settleMs"`
}
