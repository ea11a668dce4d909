package clientretry

import (
	"encoding/json"
	"math"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// link is one connection of a session, and what is known of its server.
type link struct {
	session  *mcp.ClientSession
	endpoint *endpoint

	mu          sync.Mutex
	settings    *schema.ServerSettings // nil when not declared; replaced, not written
	proven      time.Time              // when keys last reached an extended server
	unsupported map[string]bool        // tools that take no keys
}

func newLink(cs *mcp.ClientSession, e *endpoint) *link {
	return &link{session: cs, endpoint: e, settings: declaredBy(cs), unsupported: map[string]bool{}}
}

// close closes the connection and waits until nothing of it is left.
func (l *link) close() error {
	err := l.session.Close()
	l.endpoint.closing.Wait()
	return err
}

// declaredBy reads the extension's settings; nil when they are not there or
// not what they should be.
func declaredBy(cs *mcp.ClientSession) *schema.ServerSettings {
	init := cs.InitializeResult()
	if init == nil || init.Capabilities == nil {
		return nil
	}
	return readSettings(init.Capabilities.Extensions[schema.ExtensionID])
}

func readSettings(raw any) *schema.ServerSettings {
	object, ok := raw.(map[string]any)
	if !ok {
		return nil
	}
	var s schema.ServerSettings
	if s.KeyNamespace, ok = object["keyNamespace"].(string); !ok || schema.CheckNamespace(s.KeyNamespace) != nil {
		return nil
	}
	if v, has := object["keyParam"]; has {
		if s.KeyParam, ok = v.(bool); !ok {
			return nil
		}
	}
	// A number may come as 3.6e6, which an int64 does not decode from.
	b, err := json.Marshal(object["retentionMs"])
	var ms float64
	if err != nil || json.Unmarshal(b, &ms) != nil || ms < 1 || ms != math.Trunc(ms) {
		return nil
	}
	if s.RetentionMs = math.MaxInt64; ms < math.MaxInt64 {
		s.RetentionMs = int64(ms)
	}
	return &s
}

// declared returns what the server declares; nil when it does not.
func (l *link) declared() *schema.ServerSettings {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settings
}

// takes returns what the server declares if the tool takes keys.
func (l *link) takes(tool string) *schema.ServerSettings {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsupported[tool] {
		return nil
	}
	return l.settings
}

// hint notes whether a tool takes keys.
func (l *link) hint(tool string, unsupported bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if unsupported {
		l.unsupported[tool] = true
	} else {
		delete(l.unsupported, tool)
	}
}

// learn keeps what the hints of listed tools say.
func (l *link) learn(tools []*mcp.Tool) {
	for _, t := range tools {
		if t == nil {
			continue
		}
		hint, _ := t.Meta[schema.ExtensionID].(map[string]any)
		use, _ := hint["key"].(string)
		l.hint(t.Name, schema.KeyUse(use) == schema.KeyUnsupported)
	}
}

// prove notes that keys reach an extended server over this connection.
func (l *link) prove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proven = time.Now()
}

func (l *link) provenSince(t time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proven.After(t)
}

// renamed notes a newer namespace of the server's.
func (l *link) renamed(ns string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settings != nil && ns != l.settings.KeyNamespace {
		c := *l.settings
		c.KeyNamespace = ns
		l.settings = &c
	}
}

// milliseconds makes a duration of a number off the wire, which may be
// anything.
func milliseconds(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}
