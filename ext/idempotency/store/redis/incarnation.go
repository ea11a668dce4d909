package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// checkClient refuses what the store cannot keep its word with.
func (s *Store) checkClient() error {
	var bounded bool
	switch c := s.client.(type) {
	case *goredis.Client:
		bounded = c.Options().ContextTimeoutEnabled
	case *goredis.ClusterClient:
		bounded = c.Options().ContextTimeoutEnabled
		if s.opt.KeepOverRestarts {
			return errors.New("redis: KeepOverRestarts needs one server; a cluster fails over to replicas, which may lack the last writes")
		}
	default:
		return fmt.Errorf("redis: the client is a %T; a *Client or *ClusterClient of go-redis is needed", s.client)
	}
	if !bounded {
		return errors.New("redis: set ContextTimeoutEnabled in the client's options; without it a step outlives the time that it is given")
	}
	return nil
}

// node is the client of the server that holds the records.
func (s *Store) node(ctx context.Context) (*goredis.Client, error) {
	if c, ok := s.client.(*goredis.ClusterClient); ok {
		return c.MasterForKey(ctx, s.keys[0])
	}
	return s.client.(*goredis.Client), nil // checkClient saw to it
}

// checkServer refuses a server that forgets by its configuration.
func (s *Store) checkServer(ctx context.Context) error {
	node, err := s.node(ctx)
	if err != nil {
		return fail(ctx, err)
	}
	memory, err := node.Info(ctx, "memory").Result()
	if err != nil {
		return fail(ctx, err)
	}
	// The policies volatile-… take only keys with a time to live, and the
	// store sets none.
	if policy := infoField(memory, "maxmemory_policy"); strings.HasPrefix(policy, "allkeys-") {
		return fmt.Errorf("redis: the server's maxmemory-policy is %s, which forgets records to make room; set noeviction", policy)
	}
	if !s.opt.KeepOverRestarts {
		return nil
	}
	_, why, err := durable(ctx, node)
	switch {
	case err != nil:
		return fail(ctx, fmt.Errorf("KeepOverRestarts needs CONFIG GET: %w", err))
	case why != "":
		return fmt.Errorf("redis: KeepOverRestarts: a restart of this server may lose what it acknowledged: %s", why)
	}
	return nil
}

// judge decides what to do with records of an incarnation of the server that
// is no more: go on with them when nothing of them can be lost, and tell the
// script of the step to start over otherwise. It returns whether the script is
// to ask again should it meet yet another incarnation.
func (s *Store) judge(ctx context.Context, from, to string) (again bool, err error) {
	node, err := s.node(ctx)
	if err != nil {
		return false, err
	}
	replication, why, err := durable(ctx, node)
	if err != nil {
		return false, err
	}
	if infoField(replication, "master_replid") != to {
		return true, nil // replaced once more, or another server: ask anew
	}
	// A server that was promoted, or loaded a snapshot, says what it followed.
	if why != "" || strings.Trim(infoField(replication, "master_replid2"), "0") != "" {
		return false, nil
	}
	_, err = s.scripts.adopt.Run(ctx, s.client, s.keys, s.told(false, []any{from, to})...).Slice()
	return true, err
}

// durable reports why a restart of the server may lose acknowledged writes,
// with what the same server says of its replication: a pipeline is one
// connection.
func durable(ctx context.Context, node *goredis.Client) (replication, why string, err error) {
	want := []struct{ name, value string }{
		// Every write is on the disk before it is acknowledged, also while the
		// file is rewritten.
		{"appendonly", "yes"}, {"appendfsync", "always"}, {"no-appendfsync-on-rewrite", "no"},
	}
	var info *goredis.StringCmd
	got := make([]*goredis.MapStringStringCmd, len(want))
	_, err = node.Pipelined(ctx, func(p goredis.Pipeliner) error {
		info = p.Info(ctx, "replication")
		for i, w := range want {
			got[i] = p.ConfigGet(ctx, w.name)
		}
		return nil
	})
	if err != nil {
		return "", "", err
	}
	for i, w := range want {
		if v := got[i].Val()[w.name]; v != w.value {
			return info.Val(), fmt.Sprintf("%s is %q, not %q", w.name, v, w.value), nil
		}
	}
	return info.Val(), "", nil
}

// infoField reads one field of INFO's text, "" when it is not there.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
