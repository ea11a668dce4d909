package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// DefaultTimeout is the default of [Options.Timeout].
	DefaultTimeout = 20 * time.Second
	// unwind is how long rows may take to end once they were told to.
	unwind = 5 * time.Second
	// DefaultParallel is the default of [Options.Parallel].
	DefaultParallel = 4
)

// Options of [Run].
type Options struct {
	// Server is the command, with its first arguments, whose process calls
	// [ServerMain] with the arguments that follow. Required.
	Server []string
	// Timeout bounds the whole run; what is running then is killed, and Run
	// returns within five seconds. Zero or less means [DefaultTimeout].
	Timeout time.Duration
	// Parallel is how many rows run at one time. Zero or less means
	// [DefaultParallel].
	Parallel int
	// Dir is where the servers' files are left, one folder a row. It is made
	// if it does not exist and must be empty if it does. No name means a
	// temporary directory that is removed at the end.
	Dir string
	// Progress is told of each row as it is done, one at a time. Nil: nobody.
	Progress func(done, total int, row Row)
}

// ErrDirInUse says that [Options.Dir] has files in it, which would be counted.
var ErrDirInUse = errors.New("the directory is not empty")

// Run plays all rows and returns them in the order of [Faults] and [Stacks].
// On an error, which says which rows are missing and why, the rows that
// could be played are returned with it.
func Run(ctx context.Context, opts *Options) (rows []Row, err error) {
	o := *opts
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultParallel
	}
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "sepcheck-demo-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	} else if err := makeEmpty(o.Dir); err != nil {
		return nil, err
	}
	limit := fmt.Errorf("the demo's limit of %v has passed", o.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, limit)
	defer cancel()
	t := newTable(&o)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.playAll(ctx)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		// The servers are being killed now, which ends every row. A client
		// that does not notice must not keep the reader waiting all the same.
		select {
		case <-ended:
		case <-time.After(unwind):
		}
	}
	return t.result()
}

func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s: %w; name another one, or remove it", dir, ErrDirInUse)
	}
	return err
}
