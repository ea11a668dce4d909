// Command downstream is an MCP server whose tool has its effect elsewhere, in a
// payment API that knows idempotency keys, as most of them do:
//
//	go run ./examples/downstream
//
// The server dies after the API has charged and before anything is recorded.
// Nobody can undo that charge; but the tool is one that may run again
// (sqlite.AddTool), and it passes the key of the call on, so that the API sees
// the second request for what it is.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

func main() {
	serve := flag.String("serve", "", "be the server, with this database file")
	api := flag.String("api", "", "with -serve: the payment API")
	die := flag.Bool("die", false, "with -serve: die when the API has charged")
	flag.Parse()
	log.SetFlags(0)
	var err error
	if *serve != "" {
		err = server(context.Background(), *serve, *api, *die)
	} else {
		err = client(context.Background())
	}
	if err != nil {
		log.Fatal(err)
	}
}

type chargeInput struct {
	Amount int `json:"amount" jsonschema:"cents to charge"`
}

type chargeOutput struct {
	Charge string `json:"charge"`
}

func server(ctx context.Context, path, api string, die bool) error {
	records, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	idem := idempotency.New(&idempotency.Options{
		Store: records,
		Lease: 500 * time.Millisecond, // how long a dead server keeps others waiting
	})
	s := mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1.0.0"}, nil)
	sqlite.AddTool(idem, s, records, &mcp.Tool{Name: "charge", Description: "Charges the card on file."},
		func(ctx context.Context, _ *mcp.CallToolRequest, _ *sql.Tx, in chargeInput) (*mcp.CallToolResult, chargeOutput, error) {
			// The same for every attempt of the call; "charge" is for tools that
			// make several requests.
			key, ok := idempotency.DownstreamKey(ctx, "charge")
			if !ok {
				return nil, chargeOutput{}, errors.New("this tool wants an idempotency key")
			}
			out, err := charge(ctx, api, key, in)
			if die {
				os.Exit(1)
			}
			return nil, out, err
		})
	idem.Install(s)
	return errors.Join(s.Run(ctx, idem.Transport(&mcp.StdioTransport{})), records.Close())
}

// charge asks the payment API.
func charge(ctx context.Context, api, key string, in chargeInput) (out chargeOutput, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/charges?amount=%d", api, in.Amount), nil)
	if err != nil {
		return out, err
	}
	req.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return out, err
	}
	defer res.Body.Close()
	return out, json.NewDecoder(res.Body).Decode(&out)
}

// A paymentAPI charges once for a key.
type paymentAPI struct {
	mu       sync.Mutex
	charges  map[string]string // by idempotency key
	requests int
}

func (p *paymentAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	key := r.Header.Get("Idempotency-Key")
	if p.charges[key] == "" {
		p.charges[key] = fmt.Sprintf("ch_%d", len(p.charges)+1)
	}
	_ = json.NewEncoder(w).Encode(chargeOutput{p.charges[key]})
}

func client(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "downstream-example")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := os.Executable()
	if err != nil {
		return err
	}
	payments := &paymentAPI{charges: map[string]string{}}
	api := httptest.NewServer(payments)
	defer api.Close()

	arguments := []string{"-serve", filepath.Join(dir, "records.db"), "-api", api.URL, "-die"}
	agent := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, nil)
	session, err := clientretry.New(agent, &clientretry.Options{
		Dial: func(context.Context) (mcp.Transport, error) {
			return &mcp.CommandTransport{Command: exec.Command(program, arguments...)}, nil
		},
	}).Connect(ctx, nil, nil)
	if err != nil {
		return err
	}
	arguments = arguments[:4] // the next one lives
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"amount": 4200}})
	if err := errors.Join(err, session.Close()); err != nil {
		return err
	}
	fmt.Printf("answer %v; the payment API got %d requests and made %d charge\n",
		result.StructuredContent, payments.requests, len(payments.charges))
	if payments.requests != 2 || len(payments.charges) != 1 {
		return errors.New("not two requests for one charge")
	}
	return nil
}
