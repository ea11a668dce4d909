package fault

// Defaults of [Options].
const (
	DefaultMaxBodyBytes = 16 << 20
	DefaultMaxCalls     = 100_000
)

// Options of a [Layer] or a [Stdio]. Nil and the zero value give a recorder
// that loses nothing.
type Options struct {
	// Rules say which calls meet which fault. Nil: none does.
	Rules Rules

	// OnEvent is called at each [Phase] of each call, on the goroutine that
	// carries the call, which waits for it. It must be safe for concurrent
	// use and must not block. Nil: nobody is told.
	OnEvent func(Event)

	// MaxBodyBytes bounds what is held of one request or of one answer that a
	// fault replaces. A longer request is forwarded whole but neither
	// recorded nor harmed; of a longer answer the rest is read and dropped.
	// Zero or less means [DefaultMaxBodyBytes].
	MaxBodyBytes int64

	// MaxCalls bounds how many calls are remembered; the oldest go first.
	// Zero or less means [DefaultMaxCalls].
	MaxCalls int
}

func (o *Options) withDefaults() Options {
	var out Options
	if o != nil {
		out = *o
	}
	if out.MaxBodyBytes <= 0 {
		out.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if out.MaxCalls <= 0 {
		out.MaxCalls = DefaultMaxCalls
	}
	out.Rules = append(Rules(nil), out.Rules...)
	return out
}
