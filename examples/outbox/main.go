// Command outbox is a tool that sends mail, by a service that knows no
// idempotency keys but ignores a message id that it has seen:
//
//	go run ./examples/outbox
//
// The handler sends nothing. It writes the mail into a table, in the transaction
// of the call's record, so that there is one mail for each call whatever
// crashes. A sender of its own delivers what is in the table, again and again
// until the service has answered, with the row's id as the message's.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/ext/clientretry"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency"
	"github.com/mcp-idempotency/mcp-idempotency/ext/idempotency/store/sqlite"
)

func main() {
	log.SetFlags(0)
	dir, err := os.MkdirTemp("", "outbox-example")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), filepath.Join(dir, "mail.db"))
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		log.Fatal(err)
	}
}

type mailInput struct {
	To   string `json:"to"`
	Text string `json:"text"`
}

type mailOutput struct {
	Mail int64 `json:"mail" jsonschema:"number of the mail, which is on its way"`
}

func run(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `CREATE TABLE outbox (id INTEGER PRIMARY KEY, recipient TEXT NOT NULL, body TEXT NOT NULL)`); err != nil {
		return err
	}
	if err := callTwice(ctx, path); err != nil {
		return err
	}
	service := &mailService{sent: map[string]bool{}}
	front := httptest.NewServer(service)
	defer front.Close()
	passes := 0
	for left := 1; left > 0; passes++ {
		if left, err = deliver(ctx, db, front.URL); err != nil {
			return err
		}
	}
	fmt.Printf("2 attempts of one call, %d passes of the sender, %d requests to the mail service, %d mail sent\n",
		passes, service.requests, len(service.sent))
	if service.requests != 2 || len(service.sent) != 1 {
		return errors.New("not two requests for one mail")
	}
	return nil
}

// callTwice makes one call, and makes it again with its key, as a client does
// that has lost the answer.
func callTwice(ctx context.Context, path string) error {
	records, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return err
	}
	defer records.Close()
	idem := idempotency.New(&idempotency.Options{Store: records})
	server := mcp.NewServer(&mcp.Implementation{Name: "mail", Version: "1.0.0"}, nil)
	sqlite.AddTool(idem, server, records, &mcp.Tool{Name: "send_mail", Description: "Sends a mail."},
		func(ctx context.Context, _ *mcp.CallToolRequest, tx *sql.Tx, in mailInput) (*mcp.CallToolResult, mailOutput, error) {
			var out mailOutput
			err := tx.QueryRowContext(ctx, `INSERT INTO outbox (recipient, body) VALUES (?, ?) RETURNING id`, in.To, in.Text).Scan(&out.Mail)
			return nil, out, err
		})
	idem.Install(server)

	toServer, toClient := mcp.NewInMemoryTransports()
	if _, err := server.Connect(ctx, idem.Transport(toClient), nil); err != nil {
		return err
	}
	session, err := clientretry.New(mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1.0.0"}, nil), nil).Connect(ctx, toServer, nil)
	if err != nil {
		return err
	}
	defer session.Close()
	key, err := session.MintKey()
	if err != nil {
		return err
	}
	for range 2 {
		if _, err := session.CallTool(clientretry.WithKey(ctx, key), &mcp.CallToolParams{
			Name: "send_mail", Arguments: mailInput{To: "ada@example.com", Text: "Your order is on its way."},
		}); err != nil {
			return err
		}
	}
	return nil
}

// deliver hands what is in the outbox to the mail service, and returns how many
// have to be tried again.
func deliver(ctx context.Context, db *sql.DB, service string) (left int, err error) {
	rows, err := db.QueryContext(ctx, `SELECT id, recipient, body FROM outbox ORDER BY id`)
	if err != nil {
		return 0, err
	}
	type mail struct {
		id       int64
		to, text string
	}
	var due []mail
	for rows.Next() {
		var m mail
		if err := rows.Scan(&m.id, &m.to, &m.text); err != nil {
			return 0, errors.Join(err, rows.Close())
		}
		due = append(due, m)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, err
	}
	for _, m := range due {
		res, err := http.PostForm(service, url.Values{"id": {fmt.Sprint(m.id)}, "to": {m.to}, "text": {m.text}})
		if err != nil {
			left++ // it may have been sent: the next pass asks again
			continue
		}
		if err := res.Body.Close(); err != nil {
			return left, err
		}
		if _, err := db.ExecContext(ctx, `DELETE FROM outbox WHERE id = ?`, m.id); err != nil {
			return left, err
		}
	}
	return left, nil
}

// A mailService sends a mail once for an id, and loses its first response.
type mailService struct {
	mu       sync.Mutex
	requests int
	sent     map[string]bool
}

func (s *mailService) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	s.sent[r.FormValue("id")] = true
	if s.requests == 1 {
		panic(http.ErrAbortHandler) // the connection breaks
	}
}
