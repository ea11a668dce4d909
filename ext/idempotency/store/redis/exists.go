package redis

import (
	"context"

	goredis "github.com/redis/go-redis/v9"
)

// Exists reports whether there are records of a store with the prefix on the
// client's server: for tools that must not make one. An empty prefix is the
// default.
func Exists(ctx context.Context, client goredis.UniversalClient, prefix string) (bool, error) {
	o, err := (&Options{Prefix: prefix}).withDefaults()
	if err != nil {
		return false, err
	}
	n, err := client.Exists(ctx, stateKey(o.Prefix)).Result()
	return n == 1, err
}

// stateKey names the hash that everything else of a store hangs on.
func stateKey(prefix string) string { return tagOf(prefix) + "state" }

// tagOf starts every name of a store.
func tagOf(prefix string) string { return "{" + prefix + "}:" + layout + ":" }
