package idempotency

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// declare adds the capability to a discover or initialize result (SEP,
// "Capability"). When the store cannot tell its namespace nothing is declared:
// a client then sends no keys, which is safe.
func (m *Idempotency) declare(ctx context.Context, req mcp.Request, res mcp.Result) mcp.Result {
	if m.opt.AcceptOnly {
		return res
	}
	sctx, cancel := m.storeContext(ctx)
	defer cancel()
	ns, err := m.opt.Store.Current(sctx)
	if err != nil {
		m.opt.Logger.Error("idempotency: capability not declared, the store does not answer", "error", err)
		return res
	}
	settings := map[string]any{"keyNamespace": ns.Name, "retentionMs": ns.Retention.Milliseconds()}
	if m.adapted(req) {
		settings["keyParam"] = true
	}
	with := func(caps *mcp.ServerCapabilities) *mcp.ServerCapabilities {
		c := mcp.ServerCapabilities{}
		if caps != nil {
			c = *caps
		}
		c.Extensions = maps.Clone(c.Extensions)
		c.AddExtension(schema.ExtensionID, settings)
		return &c
	}
	switch r := res.(type) {
	case *mcp.InitializeResult:
		c := *r
		c.Capabilities = with(r.Capabilities)
		return &c
	case *mcp.DiscoverResult:
		c := *r
		c.Capabilities = with(r.Capabilities)
		return &c
	}
	return res
}

// adapted reports whether the wire adapter saw the request, so that it would
// have found a key in params.
func (m *Idempotency) adapted(req mcp.Request) bool {
	if extra := req.GetExtra(); extra != nil && extra.Header != nil {
		return extra.Header.Get(adapterHeader) == m.adapter
	}
	return m.piped.Load()
}

// decorate adds the hint and the sentence to every tool of a list (SEP, "Tool
// hint").
func (m *Idempotency) decorate(res mcp.Result) mcp.Result {
	list, ok := res.(*mcp.ListToolsResult)
	if !ok || m.opt.AcceptOnly {
		return res
	}
	c := *list
	c.Tools = make([]*mcp.Tool, len(list.Tools))
	for i, t := range list.Tools {
		tool := *t
		opt := m.opt.tool(t.Name)
		tool.Meta = maps.Clone(t.Meta)
		if tool.Meta == nil {
			tool.Meta = mcp.Meta{}
		}
		tool.Meta[schema.ExtensionID] = opt.hint()
		if s := opt.sentence(); tool.Description == "" {
			tool.Description = s
		} else {
			tool.Description = strings.TrimRight(t.Description, " \n") + " " + s
		}
		c.Tools[i] = &tool
	}
	return &c
}

// sentence says what a repeat of the call does. Models read it, so it never
// invites them to make up a new key for what they have asked for already.
func (t ToolOptions) sentence() string {
	if t.KeyArgument != "" {
		return fmt.Sprintf("Repeating a call with the same %q returns the first call's result and does not run it again; "+
			"use a new value only for a new intention.", t.KeyArgument)
	}
	switch t.Key {
	case schema.KeyUnsupported:
		return "Repeating this call runs it again."
	case schema.KeyRequired:
		return "The client marks each intended call with an idempotency key; a repeat with the same key returns the first result and does not run again."
	}
	return "A repeat that the client marks with the same idempotency key returns the first result and does not run again."
}
