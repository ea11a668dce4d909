package store

// State of a record.
type State uint8

const (
	// Absent: there is no record. The zero value.
	Absent State = iota
	// Running: an attempt runs the tool, or died doing so.
	Running
	// Waiting: the tool asked for input and the call is open; the record
	// holds the question and its round nonce.
	Waiting
	// Completed: the tool ran to its end. Final.
	Completed
	// NoEffect: the tool itself, or an operator, said that it had no effect.
	// Final.
	NoEffect
	// Unknown: a run started and its end was not recorded. Final for every
	// attempt; only the late end of that same run or an operator changes it.
	Unknown
)

// String returns the state's name as the SEP's table spells it.
func (s State) String() string {
	switch s {
	case Absent:
		return "absent"
	case Running:
		return "running"
	case Waiting:
		return "waiting"
	case Completed:
		return "completed"
	case NoEffect:
		return "noEffect"
	case Unknown:
		return "unknown"
	}
	return "invalid"
}

// Event is what happens to a record.
type Event uint8

const (
	// Reserve: an attempt with a new key takes it, to run the tool.
	Reserve Event = iota + 1
	// Continue: an attempt carries the latest round's nonce and runs.
	Continue
	// Complete: the run ended with a result or an error that the tool raised.
	Complete
	// DeclareNoEffect: the run ended and says that it had no effect.
	DeclareNoEffect
	// Ask: the run ended with a question (a multi round-trip call).
	Ask
	// Reject: a continuation was refused by the tool before it did anything;
	// the question before it stands.
	Reject
	// TakeOver: the lease of a transactional run passed, so that nothing of it
	// can be committed any more, and another attempt runs.
	TakeOver
	// Lose: the run ended, or was given up, without a word on its effect.
	Lose
	// ResolveCompleted and ResolveNoEffect are an operator's word on an
	// unknown outcome.
	ResolveCompleted
	ResolveNoEffect
)

// String returns the event's name as the SEP's table spells it.
func (e Event) String() string {
	switch e {
	case Reserve:
		return "reserve"
	case Continue:
		return "continue"
	case Complete:
		return "complete"
	case DeclareNoEffect:
		return "declareNoEffect"
	case Ask:
		return "ask"
	case Reject:
		return "reject"
	case TakeOver:
		return "takeOver"
	case Lose:
		return "lose"
	case ResolveCompleted:
		return "resolveCompleted"
	case ResolveNoEffect:
		return "resolveNoEffect"
	}
	return "invalid"
}

// States and Events list all of each, in order, for tables and tests.
func States() []State {
	return []State{Absent, Running, Waiting, Completed, NoEffect, Unknown}
}

// Events lists every event.
func Events() []Event {
	return []Event{Reserve, Continue, Complete, DeclareNoEffect, Ask, Reject, TakeOver, Lose, ResolveCompleted, ResolveNoEffect}
}

// A Transition is one row of the record's life cycle.
type Transition struct {
	From  State
	On    Event
	To    State
	Why   string
	Fence bool // whether the run's token must match
}

// Transitions returns the life cycle of a record (SEP, "Record life cycle").
// What is not in it is refused.
func Transitions() []Transition {
	return []Transition{
		{Absent, Reserve, Running, "a new key is taken before anything runs", false},
		{Running, Complete, Completed, "the run ended with an answer", true},
		{Running, DeclareNoEffect, NoEffect, "the tool said that it had no effect", true},
		{Running, Ask, Waiting, "the tool asked for input", true},
		{Running, Reject, Waiting, "the tool refused a continuation before doing anything; its question stands", true},
		{Running, TakeOver, Running, "transactional tools only: the lease passed and the effect cannot be committed without it", false},
		{Running, Lose, Unknown, "crash, panic, lease passed, or cancelled without a word", true},
		{Waiting, Continue, Running, "an attempt carries the latest nonce", false},
		{Unknown, Complete, Completed, "the run that was given up ended after all", true},
		{Unknown, DeclareNoEffect, NoEffect, "the run that was given up ended after all", true},
		{Unknown, ResolveCompleted, Completed, "an operator knows that it ran", false},
		{Unknown, ResolveNoEffect, NoEffect, "an operator knows that it did not", false},
	}
}

// Next returns the state after an event, and false when the life cycle has no
// such transition.
func Next(from State, on Event) (State, bool) {
	switch on {
	case Reserve:
		return Running, from == Absent
	case Continue:
		return Running, from == Waiting
	case Complete:
		return Completed, from == Running || from == Unknown
	case DeclareNoEffect:
		return NoEffect, from == Running || from == Unknown
	case Ask, Reject:
		return Waiting, from == Running
	case TakeOver:
		return Running, from == Running
	case Lose:
		return Unknown, from == Running
	case ResolveCompleted:
		return Completed, from == Unknown
	case ResolveNoEffect:
		return NoEffect, from == Unknown
	}
	return from, false
}

// Final reports whether no attempt can change the state any more.
func (s State) Final() bool { return s == Completed || s == NoEffect || s == Unknown }
