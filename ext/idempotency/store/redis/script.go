package redis

import (
	"context"
	"crypto/rand"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/state.lua
	luaState string
	//go:embed lua/record.lua
	luaRecord string
	//go:embed lua/current.lua
	luaCurrent string
	//go:embed lua/reserve.lua
	luaReserve string
	//go:embed lua/renew.lua
	luaRenew string
	//go:embed lua/end.lua
	luaEnd string
	//go:embed lua/alive.lua
	luaAlive string
	//go:embed lua/adopt.lua
	luaAdopt string
	//go:embed lua/held.lua
	luaHeld string
	//go:embed lua/list.lua
	luaList string
	//go:embed lua/resolve.lua
	luaResolve string
	//go:embed lua/forget.lua
	luaForget string
)

// scripts are the steps of the store. Each is one round trip: EVALSHA, and
// EVAL once for every server that does not know the script yet.
type scripts struct {
	current, reserve, renew, end, alive, adopt *goredis.Script
	held, list, resolve, forget                *goredis.Script
}

func newScripts() scripts {
	script := func(body string) *goredis.Script { return goredis.NewScript(luaState + luaRecord + body) }
	return scripts{
		current: script(luaCurrent), reserve: script(luaReserve), renew: script(luaRenew), end: script(luaEnd),
		alive: script(luaAlive), adopt: script(luaAdopt), held: script(luaHeld), list: script(luaList),
		resolve: script(luaResolve), forget: script(luaForget),
	}
}

var (
	errReplica  = errors.New("redis: the server is a replica; a store needs the master")
	errForm     = errors.New("redis: a script gave an answer of an unknown form")
	errRestless = errors.New("redis: the server was replaced again and again during one step")
)

// step runs a script with what every script is told first, and returns what
// it answers beyond that.
func (s *Store) step(ctx context.Context, script *goredis.Script, args ...any) (reply, error) {
	judge := s.opt.KeepOverRestarts
	for range 3 {
		if s.listener.closed() {
			return nil, ErrClosed
		}
		v, err := script.Run(ctx, s.client, s.keys, s.told(judge, args)...).Slice()
		if err != nil {
			return nil, fail(ctx, err)
		}
		switch r := reply(v); r.text(0) {
		case "ok":
			s.learn(r.text(1), r.number(2))
			return r[min(3, len(r)):], nil
		case "moved":
			if judge, err = s.judge(ctx, r.text(1), r.text(2)); err != nil {
				return nil, fail(ctx, err)
			}
		case "replica":
			return nil, errReplica
		default:
			return nil, errForm
		}
	}
	return nil, errRestless
}

// fail tells the end of the caller's context from a failure of the server.
func fail(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("redis: %w", err)
}

// told is ARGV: see lua/state.lua.
func (s *Store) told(judge bool, args []any) []any {
	s.mu.Lock()
	epoch, seq := s.epoch, s.seq
	s.mu.Unlock()
	var skew time.Duration
	if s.skew != nil {
		skew = s.skew()
	}
	return append([]any{
		newNamespace(), epoch, seq, flag(judge), skew.Milliseconds(), s.times,
	}, args...)
}

// learn remembers how far the store was seen to be, so that an older copy of
// it is noticed (see "Restarts" in the package comment).
func (s *Store) learn(epoch string, seq int64) {
	if epoch == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != epoch {
		s.epoch, s.seq = epoch, seq
	}
	s.seq = max(s.seq, seq)
}

// newNamespace makes a name of 80 random bits. It is part of all that is
// written, so it is not longer.
func newNamespace() string { return "r" + strings.ToLower(rand.Text()[:16]) }

// millis rounds up, so that no time is cut short, and a negative one is none.
func millis(d time.Duration) int64 {
	return int64((max(d, 0) + time.Millisecond - 1) / time.Millisecond)
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// reply is the answer of a script. What is missing or of another type reads
// as zero.
type reply []any

func (r reply) text(i int) string {
	if i < len(r) {
		s, _ := r[i].(string)
		return s
	}
	return ""
}

// optional is false when the script answered nothing.
func (r reply) optional(i int) (string, bool) {
	if i < len(r) {
		s, ok := r[i].(string)
		return s, ok
	}
	return "", false
}

func (r reply) number(i int) int64 {
	if i < len(r) {
		switch n := r[i].(type) {
		case int64:
			return n
		case string:
			v, _ := strconv.ParseInt(n, 10, 64)
			return v
		}
	}
	return 0
}

func (r reply) list(i int) []any {
	if i < len(r) {
		l, _ := r[i].([]any)
		return l
	}
	return nil
}
