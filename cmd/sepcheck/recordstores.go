package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/postgres"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

// errNoStore says that there is no store where one was looked for. A tool for
// operators must not make one.
var errNoStore = errors.New("there is no record store here")

// openOperator opens the store that the flags name. It never makes one.
func openOperator(ctx context.Context, where *storeFlags) (op store.Operator, closeStore func() error, err error) {
	switch {
	case where.sqlite != "":
		return openSQLite(ctx, where)
	case where.postgres != "":
		return openPostgres(ctx, where)
	}
	return openRedis(ctx, where)
}

func openSQLite(ctx context.Context, where *storeFlags) (store.Operator, func() error, error) {
	if _, err := os.Stat(where.sqlite); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errNoStore, err)
	}
	s, err := sqlite.Open(ctx, where.sqlite, &sqlite.Options{WitnessPath: where.witness})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

func openPostgres(ctx context.Context, where *storeFlags) (store.Operator, func() error, error) {
	config, err := pgxpool.ParseConfig(where.postgres)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = max(config.MaxConns, 2)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	var there bool
	if err := pool.QueryRow(ctx, `SELECT to_regnamespace(quote_ident($1)) IS NOT NULL`, where.schema).Scan(&there); err != nil {
		pool.Close()
		return nil, nil, err
	}
	if !there {
		pool.Close()
		return nil, nil, fmt.Errorf("%w: the database has no schema %q (--schema)", errNoStore, where.schema)
	}
	s, err := postgres.Open(ctx, pool, &postgres.Options{Schema: where.schema})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return s, func() error { defer pool.Close(); return s.Close() }, nil
}

func openRedis(ctx context.Context, where *storeFlags) (store.Operator, func() error, error) {
	o, err := goredis.ParseURL(where.redis)
	if err != nil {
		return nil, nil, err
	}
	o.ContextTimeoutEnabled = true
	client := goredis.NewClient(o)
	there, err := redis.Exists(ctx, client, where.prefix)
	if err == nil && !there {
		err = fmt.Errorf("%w: the server has none with the prefix %q (--prefix)", errNoStore, where.prefix)
	}
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	s, err := redis.Open(ctx, client, &redis.Options{Prefix: where.prefix, KeepOverRestarts: where.keep})
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return s, func() error { return errors.Join(s.Close(), client.Close()) }, nil
}
