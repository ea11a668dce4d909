package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Script runs SQL on the connection that writes.
func (s *Store) Script(text string) error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.w.script(text)
}

// Read reads the first column of all rows.
func (s *Store) Read(text string) ([]string, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.w.column(text, 0)
}

// Plans returns what SQLite says of how it would run each statement, by the
// statement.
func (s *Store) Plans() (map[string][]string, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	held, err := heldNamespaces(s.w)
	if err != nil {
		return nil, err
	}
	plans := map[string][]string{}
	for q := range queryCount {
		text := q.text(strconv.FormatInt(held[0].id, 10))
		switch word, _, _ := strings.Cut(text, " "); word {
		case "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE":
			if plans[text], err = s.w.column("EXPLAIN QUERY PLAN "+text, 3); err != nil {
				return nil, err
			}
		}
	}
	return plans, nil
}

// column reads one column of what a statement, whose parameters are null,
// returns.
func (c *conn) column(text string, i int) (values []string, err error) {
	s, err := c.c.(driver.ConnPrepareContext).PrepareContext(background, text)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var args []driver.NamedValue
	for n := range strings.Count(text, "?") {
		args = append(args, driver.NamedValue{Ordinal: n + 1})
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(background, args)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	cells := make([]driver.Value, len(rows.Columns()))
	for {
		switch err := rows.Next(cells); {
		case errors.Is(err, io.EOF):
			return values, nil
		case err != nil:
			return nil, err
		}
		values = append(values, fmt.Sprint(cells[i]))
	}
}

// Interrupt makes the connection that writes unusable: it is in a transaction
// that nothing will end.
func (s *Store) Interrupt() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if err := s.w.script("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	s.disconnect()
	return nil
}

// Latest is the version of the schema.
const Latest = latest

// MaxTallies is how many tallies of a namespace are remembered.
const MaxTallies = maxTallies

// Tallies is how many tallies are remembered.
func (s *Store) Tallies() (n int) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	for _, ns := range s.view.held {
		n += len(ns.principals) + len(ns.running)
	}
	return n
}

// Effect is the transaction of a tool.
type Effect = effect

// BeginEffect begins one.
func (s *Store) BeginEffect(ctx context.Context) (*Effect, error) { return s.beginEffect(ctx) }

// Tx is what the handler gets.
func (e *effect) Tx() *sql.Tx { return e.tx }

// Usable is what is asked when the handler has returned.
func (e *effect) Usable() error { return e.usable() }
