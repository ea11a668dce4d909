package idempotency

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// toolChecker tells, before anything is reserved, whether a call would reach
// its handler: the tool exists and the arguments fit its input schema. The
// SDK checks the same again, inside the handler, where it is too late to
// record nothing.
type toolChecker struct {
	mu       sync.Mutex
	resolved map[string]resolvedTool // by name
}

type resolvedTool struct {
	source any // the pointer that the schema was resolved from
	schema *jsonschema.Resolved
	flat   *flatSchema // nil when the schema is not that simple
}

// check returns nil when the call may run. Otherwise it returns the answer
// that the SDK gives when the call does not reach its handler.
func (c *toolChecker) check(ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler) (mcp.Result, error) {
	tool, err := findTool(ctx, req, next)
	if err != nil {
		return nil, err
	}
	if tool == nil {
		return nil, invalidParams("unknown tool %q", req.Params.Name)
	}
	resolved := c.resolve(tool)
	if resolved.schema == nil || resolved.flat != nil && resolved.flat.accepts(req.Params.Arguments) {
		return nil, nil
	}
	args := map[string]any{}
	if len(req.Params.Arguments) > 0 {
		if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
			return nil, invalidParams("arguments: %v", err)
		}
	}
	var value any = args
	if err := resolved.schema.ApplyDefaults(&value); err != nil {
		return nil, invalidParams("arguments: %v", err)
	}
	if err := resolved.schema.Validate(&value); err != nil {
		res := emptyResult(modern(req))
		res.SetError(validationError{err})
		return res, nil
	}
	return nil, nil
}

// validationError has the text that the SDK gives to a tool execution error
// for arguments that do not fit.
type validationError struct{ err error }

func (e validationError) Error() string { return `validating "arguments": ` + e.err.Error() }
func (e validationError) Unwrap() error { return e.err }

// findTool asks the server, through the rest of its middleware, for the tool
// as this caller sees it. It returns nil when there is none.
func findTool(ctx context.Context, req *mcp.CallToolRequest, next mcp.MethodHandler) (*mcp.Tool, error) {
	params := &mcp.ListToolsParams{Meta: req.Params.Meta}
	for {
		res, err := next(ctx, methodListTools, &mcp.ListToolsRequest{Session: req.Session, Params: params, Extra: req.Extra})
		if err != nil {
			return nil, err
		}
		list, ok := res.(*mcp.ListToolsResult)
		if !ok {
			return nil, nil
		}
		for _, t := range list.Tools {
			if t.Name == req.Params.Name {
				return t, nil
			}
		}
		if list.NextCursor == "" {
			return nil, nil
		}
		params = &mcp.ListToolsParams{Meta: req.Params.Meta, Cursor: list.NextCursor}
	}
}

// resolve returns the tool's input schema, ready to validate. Its schema is
// nil when it cannot be resolved, as with references to other documents, and
// the handler has to do it.
func (c *toolChecker) resolve(tool *mcp.Tool) resolvedTool {
	// AddTool makes new pointers, also for a tool of the same name; middleware
	// may copy the tool and leaves the schema's pointer.
	var source any = tool
	if s, ok := tool.InputSchema.(*jsonschema.Schema); ok {
		source = s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.resolved[tool.Name]; ok && r.source == source {
		return r
	}
	if c.resolved == nil {
		c.resolved = map[string]resolvedTool{}
	}
	r := resolveSchema(tool.InputSchema)
	r.source = source
	c.resolved[tool.Name] = r
	return r
}

func resolveSchema(input any) (r resolvedTool) {
	schema, ok := input.(*jsonschema.Schema)
	if !ok {
		b, err := json.Marshal(input)
		if err != nil {
			return r
		}
		schema = new(jsonschema.Schema)
		if err := json.Unmarshal(b, schema); err != nil {
			return r
		}
	}
	resolved, err := schema.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		return r
	}
	r.schema, r.flat = resolved, newFlatSchema(schema)
	return r
}
