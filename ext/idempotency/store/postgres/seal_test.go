package postgres

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
)

func reversed(b []byte) ([]byte, error) {
	c := slices.Clone(b)
	slices.Reverse(c)
	return c, nil
}

func TestOutcomesAreSealedAtRest(t *testing.T) {
	d := newDatabase(t)
	plain, sealed := d.open(t, nil), d.open(t, &Options{Seal: reversed, Unseal: reversed})
	for name, s := range map[string]*Store{"secret": sealed, "public": plain} {
		a, q, n := attempt(t, s), attempt(t, s), newNonce()
		expect(t, s, a, store.Run)
		record(t, s, a, complete(name))
		expect(t, s, q, store.Run)
		record(t, s, q, store.End{Event: store.Ask, Nonce: n, Outcome: []byte(name)})
		for _, b := range []store.Attempt{a, q} {
			// What was stored without Seal stays readable with it.
			if res, err := sealed.Reserve(t.Context(), again(b)); err != nil || string(res.Record.Outcome) != name {
				t.Errorf("%s: %q, %v", name, res.Record.Outcome, err)
			}
		}
		if stored := scan[[]byte](t, s, `SELECT outcome FROM {schema}.record WHERE token = $1`, [16]byte(a.Token)); bytes.Equal(stored, []byte(name)) != (s == plain) {
			t.Errorf("%s is stored as %q", name, stored)
		}
		if res, err := plain.Reserve(t.Context(), again(a)); (err == nil) != (s == plain) {
			t.Errorf("without Unseal %s is answered %q, %v", name, res.Record.Outcome, err)
		}
	}
}

func TestFailingSeals(t *testing.T) {
	d := newDatabase(t)
	var broken, lost atomic.Bool
	fail := func(b []byte) ([]byte, error) {
		if broken.Load() {
			return nil, errors.New("the key service is down")
		}
		return reversed(b)
	}
	unseal := func(b []byte) ([]byte, error) {
		if lost.Load() {
			return nil, nil
		}
		return fail(b)
	}
	s := d.open(t, &Options{Seal: fail, Unseal: unseal})
	ledger(t, s)
	c := toolServer(t, s, nil, map[string]func(context.Context, pgx.Tx) (*mcp.CallToolResult, error){})

	a := attempt(t, s)
	expect(t, s, a, store.Run)
	broken.Store(true)
	record(t, s, a, complete("x"))
	key := c.Key(t)
	if r := c.Call(t, "charge", key, `{"amount":9}`); r.Reason != "stillRunning" {
		t.Errorf("a transactional run whose outcome cannot be sealed: %s", r)
	}
	if n := charges(t, s, 9); n != 0 {
		t.Errorf("%d effects", n)
	}
	broken.Store(false)
	if res := expect(t, s, again(a), store.Known); res.Record.State != store.Completed || res.Record.Outcome != nil {
		t.Errorf("a plain run whose outcome could not be sealed: %+v", res.Record)
	}

	b := attempt(t, s)
	expect(t, s, b, store.Run)
	record(t, s, b, complete("y"))
	broken.Store(true)
	if _, err := s.Reserve(t.Context(), again(b)); err == nil {
		t.Error("an outcome that cannot be unsealed now is no error")
	}
	lost.Store(true)
	if res := expect(t, s, again(b), store.Known); res.Record.Outcome != nil {
		t.Errorf("an outcome that is lost: %q", res.Record.Outcome)
	}
}
