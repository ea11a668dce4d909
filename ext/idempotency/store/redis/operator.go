package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

// List implements [store.Operator]. It reads page by page: a record that is
// there all the while is listed, one that comes, goes or changes meanwhile may
// be. It walks over every record.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Entry, error) {
	states, limit := q.States, q.Limit
	if len(states) == 0 {
		states = []store.State{store.Unknown}
	}
	if limit == 0 {
		limit = 100
	}
	names, err := s.held(ctx)
	if err != nil {
		return nil, err
	}
	var oldest []store.Entry
	for _, name := range names {
		seen := map[store.ID]bool{} // a page may repeat what another had
		err := s.pages(ctx, name, states, q.Principal, func(e store.Entry) {
			if !seen[e.ID] {
				seen[e.ID] = true
				oldest = append(oldest, e)
			}
			if len(oldest) >= 2*limit+1000 {
				oldest = first(oldest, limit)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return first(oldest, limit), nil
}

// first returns the n entries that changed first, in order.
func first(entries []store.Entry, n int) []store.Entry {
	slices.SortStableFunc(entries, func(a, b store.Entry) int { return a.Since.Compare(b.Since) })
	return slices.Clip(entries[:min(n, len(entries))])
}

// held returns the names of the namespaces.
func (s *Store) held(ctx context.Context) ([]string, error) {
	r, err := s.step(ctx, s.scripts.held)
	if err != nil {
		return nil, err
	}
	names := reply(r.list(0))
	held := make([]string, len(names))
	for i := range names {
		held[i] = names.text(i)
	}
	return held, nil
}

func (s *Store) pages(ctx context.Context, ns string, states []store.State, principal *string, each func(store.Entry)) error {
	selected := make([]any, len(states))
	for i, state := range states {
		selected[i] = int(state)
	}
	var of string
	if principal != nil {
		of = *principal
	}
	return paged(func(cursor string) (string, error) {
		args := append([]any{ns, cursor, flag(principal != nil), of}, selected...)
		r, err := s.step(ctx, s.scripts.list, args...)
		if err != nil {
			return "", err
		}
		for _, v := range r.list(1) {
			e, ok := v.([]any)
			if !ok {
				return "", errForm
			}
			each(entry(ns, reply(e)))
		}
		return r.text(0), nil
	})
}

func entry(ns string, r reply) store.Entry {
	e := store.Entry{
		ID:        store.ID{Principal: r.text(0), Key: r.text(1)},
		Namespace: ns, State: store.State(r.number(2)), Since: time.UnixMilli(r.number(3)),
	}
	if e.State == store.Running {
		e.LeaseUntil = time.UnixMilli(r.number(4))
	}
	return e
}

// paged calls page with the cursor that the page before returned, from "0" to
// "0" again.
func paged(page func(cursor string) (string, error)) error {
	for cursor := "0"; ; {
		next, err := page(cursor)
		if err != nil {
			return err
		}
		switch next {
		case "0":
			return nil
		case "":
			return errForm
		}
		cursor = next
	}
}

// Resolve implements [store.Operator].
func (s *Store) Resolve(ctx context.Context, id store.ID, event store.Event, outcome []byte) error {
	if event != store.ResolveCompleted && event != store.ResolveNoEffect {
		return fmt.Errorf("redis: an operator does not resolve with %v", event)
	}
	state, _ := store.Next(store.Unknown, event)
	digest, principal := digests(id)
	blob, err := s.seal(digest, outcome)
	if err != nil {
		return err // an operator can do it again
	}
	var token store.Token
	_, _ = rand.Read(token[:]) // never fails
	r, err := s.step(ctx, s.scripts.resolve, id.Namespace(), digest, principal, token[:],
		int(state), flag(blob != nil), blob, s.opt.MaxResultBytes)
	if err != nil {
		return err
	}
	switch r.text(0) {
	case "resolved":
		return nil
	case "absent":
		return store.ErrNoRecord
	case "other":
		return store.ErrNotUnknown
	}
	return errForm
}

// DeleteOutcomes implements [store.Operator]. It goes page by page: outcomes
// that are there when it begins are gone when it returns. The questions of
// calls that wait for input stay.
func (s *Store) DeleteOutcomes(ctx context.Context, principal string) (int, error) {
	names, err := s.held(ctx)
	if err != nil {
		return 0, err
	}
	var n int
	for _, name := range names {
		err := paged(func(cursor string) (string, error) {
			r, err := s.step(ctx, s.scripts.forget, name, cursor, principal)
			n += int(r.number(1))
			return r.text(0), err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
