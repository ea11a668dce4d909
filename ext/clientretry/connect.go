package clientretry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstModern is the first protocol revision without a session.
const firstModern = "2026-07-28"

// errNoWayBack says that a connection is dead and that there is no way to make
// another one.
var errNoWayBack = errors.New("clientretry: no connection, and no way to make another one (Options.Dial)")

// dialing is a connection that is being made. Whoever needs it waits for done.
type dialing struct {
	done chan struct{}
	err  error
}

// connect makes a connection and reads the capability off its handshake.
func (s *Session) connect(ctx context.Context, t mcp.Transport) (*link, error) {
	e := &endpoint{}
	wrapped := s.wrap(t, e)
	opts := s.opts
	if s.ClientSession != nil {
		// Requests are made by the first session of the SDK, in the form of
		// its revision: the successor has to speak that.
		opts.ProtocolVersion = s.ClientSession.InitializeResult().ProtocolVersion
	}
	cs, err := s.retry.client.Connect(ctx, wrapped, &opts)
	if err != nil {
		e.closing.Wait()
		return nil, err
	}
	l := newLink(cs, e)
	s.tasks.Go(func() {
		_ = cs.Wait() // the SDK may be the first to see the end
		e.die(mcp.ErrConnectionClosed)
	})
	return l, nil
}

// wrap puts this layer's part below the SDK into a transport.
func (s *Session) wrap(t mcp.Transport, e *endpoint) mcp.Transport {
	switch t := t.(type) {
	case *mcp.StreamableClientTransport:
		return wrapHTTP(t, e, s.retry.opt.MaxResponseBytes)
	case *mcp.LoggingTransport:
		if isHTTP(t) { // the log is above it
			return &mcp.LoggingTransport{Transport: s.wrap(t.Transport, e), Writer: t.Writer}
		}
	}
	return &pipeTransport{inner: t, endpoint: e}
}

// isHTTP reports whether a transport is the SDK's over HTTP, or a log of it.
func isHTTP(t mcp.Transport) bool {
	switch t := t.(type) {
	case *mcp.StreamableClientTransport:
		return true
	case *mcp.LoggingTransport:
		return isHTTP(t.Transport)
	}
	return false
}

// stranded returns an error when there is no connection and will be none.
func (s *Session) stranded() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hopeless()
}

// hopeless is stranded with s.mu held.
func (s *Session) hopeless() error {
	if s.closed {
		return fmt.Errorf("%w: %w", errNoWayBack, mcp.ErrConnectionClosed)
	}
	if dead := s.live.endpoint.broken(); dead != nil && s.dial == nil {
		return fmt.Errorf("%w: %w", errNoWayBack, dead)
	}
	return nil
}

// current returns the live connection, made anew if it died and that can be
// done. However many calls want it, one connection is made at a time.
func (s *Session) current(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		if err := s.hopeless(); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		if s.live.endpoint.broken() == nil {
			l := s.live
			s.mu.Unlock()
			return l, nil
		}
		d := s.dialing
		if d == nil {
			d = &dialing{done: make(chan struct{})}
			s.dialing = d
			s.tasks.Go(func() { s.reconnect(d) })
		}
		s.mu.Unlock()
		select {
		case <-d.done:
			if d.err != nil {
				return nil, d.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// reconnect replaces the dead connection. It is not bound to the call that
// wants it first, since others may wait for it too.
func (s *Session) reconnect(d *dialing) {
	l, err := s.redial()
	s.mu.Lock()
	old := s.live
	s.dialing = nil
	switch {
	case err != nil:
		d.err = fmt.Errorf("connecting again: %w", err)
	case s.closed:
		d.err = mcp.ErrConnectionClosed
	default:
		s.live = l
	}
	s.mu.Unlock()
	if d.err == nil {
		s.retry.add(l.session, s)
		s.retry.opt.Logger.Info("clientretry: connected again")
	}
	close(d.done)
	switch {
	case d.err != nil && l != nil:
		_ = l.close()
	case d.err == nil:
		// Its process or session is gone; what is left of it here goes too.
		_ = old.close()
		if old.session != s.ClientSession {
			s.retry.forget(old.session)
		}
	}
}

// redial makes one try at a connection.
func (s *Session) redial() (*link, error) {
	ctx, cancel := context.WithCancel(s.base)
	// Only the try is bounded: a transport may keep the context.
	timer := time.AfterFunc(s.retry.opt.DialTimeout, cancel)
	defer timer.Stop()
	t, err := s.dial(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	l, err := s.connect(ctx, t)
	if err != nil {
		cancel()
		return nil, err
	}
	was, is := s.ClientSession.InitializeResult().ProtocolVersion, l.session.InitializeResult().ProtocolVersion
	if (was >= firstModern) != (is >= firstModern) {
		cancel()
		_ = l.close()
		return nil, fmt.Errorf("the server spoke MCP %s before and speaks %s now: open a new session", was, is)
	}
	return l, nil
}
