package redis_test

import (
	"context"
	"log"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	goredis "github.com/redis/go-redis/v9"

	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/redis"
)

// Any number of processes like this one share their records.
func Example() {
	client := goredis.NewClient(&goredis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer client.Close()
	records, err := redis.Open(context.Background(), client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer records.Close()

	server := mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1"}, nil)
	idem := idempotency.New(&idempotency.Options{Store: records})
	idem.Install(server)
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	log.Fatal(http.ListenAndServe("localhost:8080", idem.Handler(h)))
}
