package sqlite

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A job is one step that waits to be done.
type job struct {
	f        func(*txn) error
	ctx      context.Context
	deadline time.Time // of the wait for other processes

	granted bool
	err     error
	done    chan struct{} // closed when err is valid
}

// maxBatch bounds the jobs that share a transaction.
const maxBatch = 128

// A queue is the jobs that nobody has begun.
type queue struct {
	mu   sync.Mutex
	jobs []*job
}

func (q *queue) add(j *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs = append(q.jobs, j)
}

// withdraw takes a job back; it reports whether it had not begun.
func (q *queue) withdraw(j *job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.jobs, j)
	if i < 0 {
		return false
	}
	q.jobs = slices.Delete(q.jobs, i, i+1)
	return true
}

// take returns the oldest jobs.
func (q *queue) take() []*job {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.jobs), maxBatch)
	batch := slices.Clone(q.jobs[:n])
	q.jobs = slices.Delete(q.jobs, 0, n)
	return batch
}

// step runs f in an immediate transaction, on records that can be vouched for.
// An error of f undoes what it did; what f decides without an error is
// committed, and on disk, when step returns nil.
//
// Steps of this process that wait at the same time share a transaction: one of
// their callers does them all, one after the other. So they share what costs
// most, which is to sync the log. f may be called twice, if another one of them
// fails; what it has to say counts only when step returns.
func (s *Store) step(ctx context.Context, f func(*txn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j := &job{f: f, ctx: ctx, deadline: time.Now().Add(s.opt.BusyTimeout), done: make(chan struct{})}
	s.queue.add(j)
	var late error
	select {
	case s.turn <- struct{}{}:
		s.lead(j)
		s.giveTurn()
	case <-j.done:
	case <-ctx.Done():
		late = ctx.Err()
	case <-s.closing:
		late = ErrClosed
	}
	if late != nil && s.queue.withdraw(j) {
		return late
	}
	<-j.done // what has begun is finished
	return j.err
}

// giveTurn ends the caller's turn, or leaves it to the removal of tables, which
// may take a while and is nobody's step. Close waits for the turn.
func (s *Store) giveTurn() {
	if !s.leftover {
		<-s.turn
		return
	}
	s.leftover = false
	go func() {
		s.removeTables()
		<-s.turn
	}()
}

// lead does what is queued. The caller, whose own job is among it unless
// another has done it, has the turn.
func (s *Store) lead(own *job) {
	err := s.isOpen()
	if err == nil {
		err = s.begin(own)
	}
	if err != nil {
		// Only the own job fails. The others' callers lead in their turn.
		if s.queue.withdraw(own) {
			own.finish(err)
		}
		return
	}
	batch := s.queue.take()
	if err := s.transact(batch); err != nil && len(batch) > 1 {
		// It is not known whose fault it is: one by one.
		for _, j := range batch {
			if err = s.begin(j); err == nil {
				err = s.transact([]*job{j})
			}
			j.err = err
		}
	} else if err != nil {
		batch[0].err = err
	}
	for _, j := range batch {
		close(j.done)
	}
}

func (j *job) finish(err error) {
	j.err = err
	close(j.done)
}

// begin starts a transaction that has the write lock, in the file that the
// path leads to now.
func (s *Store) begin(j *job) error {
	for range 3 {
		if s.w == nil {
			if err := s.reconnect(j.ctx); err != nil {
				return err
			}
		}
		if err := s.w.begin(j.ctx, j.deadline); err != nil {
			return fmt.Errorf("sqlite: %w", err)
		}
		replaced, err := s.replaced()
		if err == nil && !replaced {
			return nil
		}
		s.undo()
		if err != nil {
			return fmt.Errorf("sqlite: %w", err)
		}
		s.disconnect()
	}
	return errReplaced
}

// undo rolls the transaction back.
func (s *Store) undo() {
	s.view = nil
	if _, err := s.w.exec(0, rollback); err != nil {
		// SQLite rolls back by itself on some errors; whether it did is not
		// worth finding out. A new connection has no transaction.
		s.disconnect()
	}
}

// transact does the jobs in the transaction that has begun, and commits. An
// error means that none was done, or that it is not known.
func (s *Store) transact(batch []*job) error {
	t := &txn{s: s}
	err := t.run(batch)
	if err != nil {
		s.undo()
		return fmt.Errorf("sqlite: %w", err)
	}
	if _, err = s.w.exec(0, commit); err != nil {
		s.undo()
		err = fmt.Errorf("sqlite: committing: %w", err)
		for _, j := range batch {
			j.err = err // not again: it may have been committed
		}
		return nil
	}
	if s.seen, err = s.w.version(); err != nil {
		s.view = nil // and read again next time
	}
	if t.granted {
		if err := s.witness.raise(t.view.incarnation, t.view.grants); err != nil {
			for _, j := range batch {
				if j.granted {
					j.err = err
				}
			}
		}
	}
	s.leftover = s.leftover || t.dropped
	for _, e := range t.ended {
		s.waiting.wake(e)
	}
	return nil
}
