package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
)

// A table fills with rows, in any order.
type table struct {
	opts *Options

	mu   sync.Mutex
	rows []*Row
	errs []error // why a row is missing
	done int
}

func newTable(o *Options) *table {
	t := &table{opts: o}
	for _, f := range Faults() {
		for _, s := range Stacks() {
			t.rows = append(t.rows, nil)
			t.errs = append(t.errs, fmt.Errorf("%s, %s: no row: it did not end", f, s))
		}
	}
	return t
}

func (t *table) playAll(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(t.opts.Parallel)
	for i := range t.rows {
		f, s := Faults()[i/len(Stacks())], Stacks()[i%len(Stacks())]
		group.Go(func() error {
			row, err := play(ctx, t.opts, f, s)
			if err != nil {
				if cause := context.Cause(ctx); cause != nil {
					err = cause // what follows from it says less
				}
				err = fmt.Errorf("%s, %s: no row: %w", f, s, err)
			}
			t.put(i, row, err)
			return nil // the other rows still tell something
		})
	}
	_ = group.Wait() // errors are kept by row
}

func (t *table) put(i int, row Row, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs[i] = err
	if err != nil {
		return
	}
	t.rows[i] = &row
	t.done++
	if t.opts.Progress != nil {
		t.opts.Progress(t.done, len(t.rows), row)
	}
}

func (t *table) result() ([]Row, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var played []Row
	for _, r := range t.rows {
		if r != nil {
			played = append(played, *r)
		}
	}
	return played, errors.Join(t.errs...)
}
