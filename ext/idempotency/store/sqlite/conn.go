package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// A conn is one connection with its prepared statements. It is the driver's
// own: a pool would have nothing to do. It is used by one goroutine at a time.
//
// Its statements run without a context: what has begun is finished, since it
// is short and half of it helps nobody. Contexts end the waits before.
type conn struct {
	c     driver.Conn
	stmts map[int64]*[queryCount]driver.Stmt // by namespace; 0 for the others
	args  []driver.NamedValue                // of the statement that runs
	cells []driver.Value                     // of the row that is read
}

var background = context.Background()

// busyStep is how long SQLite waits for a lock before the context is looked at
// again.
const busyStep = 20 * time.Millisecond

// connect opens a connection to the file. What it sets is for this connection;
// the journal mode is the file's own, see enableWAL.
//
// synchronous=FULL syncs the log at every commit. With NORMAL, SQLite's usual
// companion of WAL, a power failure may take back the last commits: the key
// whose tool has just run would be new again.
func connect(ctx context.Context, path string, deadline time.Time) (*conn, error) {
	p := filepath.ToSlash(path)
	if runtime.GOOS == "windows" {
		p = "/" + p
	}
	params := url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyStep.Milliseconds()),
		"synchronous(FULL)",
		"journal_size_limit(67108864)",
		"cache_size(-8192)",   // KiB
		"secure_delete(FAST)", // so that DeleteOutcomes has less to chase
	}}
	connector, err := sqlite.NewConnector((&url.URL{Scheme: "file", Path: p, RawQuery: params.Encode()}).String())
	if err != nil {
		return nil, err
	}
	var c driver.Conn
	err = patiently(ctx, deadline, func() (err error) { c, err = connector.Connect(ctx); return err })
	if err != nil {
		return nil, err
	}
	return &conn{c: c, stmts: map[int64]*[queryCount]driver.Stmt{}}, nil
}

func (c *conn) close() error {
	for id := range c.stmts {
		c.forget(id)
	}
	return c.c.Close()
}

// forget closes the statements of a namespace that has gone.
func (c *conn) forget(id int64) {
	of, ok := c.stmts[id]
	if !ok {
		return
	}
	for _, s := range of {
		if s != nil {
			_ = s.Close() // nothing is lost with it
		}
	}
	delete(c.stmts, id)
}

func (c *conn) stmt(id int64, q query) (driver.Stmt, error) {
	of, ok := c.stmts[id]
	if !ok {
		of = new([queryCount]driver.Stmt)
		c.stmts[id] = of
	}
	if of[q] == nil {
		s, err := c.c.(driver.ConnPrepareContext).PrepareContext(background, q.text(strconv.FormatInt(id, 10)))
		if err != nil {
			return nil, err
		}
		of[q] = s
	}
	return of[q], nil
}

// bind makes the parameters of a statement. They are valid until the next.
func (c *conn) bind(args []any) []driver.NamedValue {
	c.args = c.args[:0]
	for i, a := range args {
		if n, ok := a.(int); ok {
			a = int64(n)
		}
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return c.args
}

// exec runs a statement and returns how many rows it changed.
func (c *conn) exec(id int64, q query, args ...any) (int64, error) {
	s, err := c.stmt(id, q)
	if err != nil {
		return 0, err
	}
	res, err := s.(driver.StmtExecContext).ExecContext(background, c.bind(args))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// row reads at most one row; found is false when there is none.
func (c *conn) row(id int64, q query, args []any, dest ...any) (found bool, err error) {
	err = c.rows(id, q, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found && err == nil, err
}

// rows calls each for every row, with what scans it.
func (c *conn) rows(id int64, q query, args []any, each func(scan func(...any) error) error) (err error) {
	s, err := c.stmt(id, q)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(background, c.bind(args))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	c.cells = slices.Grow(c.cells[:0], len(rows.Columns()))[:len(rows.Columns())]
	for {
		switch err := rows.Next(c.cells); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := each(c.scan); err != nil {
			return err
		}
	}
}

// scan copies the row that was read. Null leaves a destination as it is.
func (c *conn) scan(dest ...any) error {
	if len(dest) != len(c.cells) {
		return fmt.Errorf("%d columns for %d destinations", len(c.cells), len(dest))
	}
	for i, cell := range c.cells {
		if cell == nil {
			continue
		}
		ok := false
		switch d := dest[i].(type) {
		case *int64:
			*d, ok = cell.(int64)
		case *string:
			*d, ok = cell.(string)
		case *[]byte:
			*d, ok = cell.([]byte)
		}
		if !ok {
			return fmt.Errorf("column %d is a %T and not for a %T", i, cell, dest[i])
		}
	}
	return nil
}

// script runs statements that are used once.
func (c *conn) script(text string, args ...any) error {
	_, err := c.c.(driver.ExecerContext).ExecContext(background, text, c.bind(args))
	return err
}

// begin starts a transaction that writes, waiting for other processes until
// the deadline or the end of the context.
func (c *conn) begin(ctx context.Context, deadline time.Time) error {
	return patiently(ctx, deadline, func() error { _, err := c.exec(0, begin); return err })
}

// patiently tries again while the database is locked.
func patiently(ctx context.Context, deadline time.Time, try func() error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := try()
		if !isCode(err, lib.SQLITE_BUSY) || time.Now().After(deadline) {
			return err
		}
		select { // not every statement waits by itself
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// isCode reports whether an error has a primary result code of SQLite.
func isCode(err error, code int) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == code
}

// version is a number that changes with every change of the file that this
// connection makes or meets.
func (c *conn) version() (uint32, error) {
	return c.c.(sqlite.FileControl).FileControlDataVersion("main")
}
