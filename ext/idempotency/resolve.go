package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// ResultOutcome makes, of the JSON of a CallToolResult, the outcome that
// resolves an unknown record as completed with that result: the argument of
// [store.Operator].Resolve with store.ResolveCompleted. Every later attempt
// then gets this result, marked as replayed.
func ResultOutcome(result json.RawMessage) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(result, &members); err != nil {
		return nil, fmt.Errorf("a result is a JSON object: %w", err)
	}
	if _, ok := members["content"]; !ok {
		return nil, errors.New(`a CallToolResult has a member "content", for example {"content":[{"type":"text","text":"done"}]}`)
	}
	var res mcp.CallToolResult
	if err := json.Unmarshal(result, &res); err != nil {
		return nil, fmt.Errorf("not a CallToolResult: %w", err)
	}
	if res.NeedsInput() || res.InputRequests != nil {
		return nil, errors.New("a question is not an outcome")
	}
	if _, ok := members["resultType"]; ok {
		delete(members, "resultType") // of a revision; a replay gets its own
		var err error
		if result, err = json.Marshal(members); err != nil {
			return nil, err
		}
	}
	return append([]byte{blobResult}, result...), nil
}

// NoEffectOutcome is the outcome that resolves an unknown record as not run,
// with a message that says why: for store.ResolveNoEffect.
func NoEffectOutcome(message string) []byte { return encodeNoEffect(message) }
