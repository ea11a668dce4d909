package everything

//lint:file-ignore SA1019 the scenarios test sampling and roots, which revision 2026-07-28 deprecates

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addRoundTools adds the tools that answer with a question and are called
// again with the answer (SEP-2322), each of them stateless: what a tool has to
// remember between two rounds travels, signed, in the request state.
func addRoundTools(server *mcp.Server) {
	sign := newSigner()
	const prefix = "test_input_required_result_"

	addTool(server, prefix+"elicitation", "Asks for a name and greets.", greet)
	addTool(server, "test_streaming_elicitation", "Asks for a name and greets.", greet)
	addTool(server, prefix+"sampling", "Asks the client's model for a capital.", askCapital)
	addTool(server, prefix+"list_roots", "Asks for the client's roots.", askRoots)
	addTool(server, prefix+"capabilities", "Asks only what the client can answer.", askWhatIsSupported)
	addTool(server, prefix+"multiple_inputs", "Asks three questions at once.", sign.askThreeThings)
	addTool(server, prefix+"multi_round", "Asks two questions, one after the other.", sign.askTwice)
	addTool(server, prefix+"request_state", "Asks, and checks that its state comes back.", sign.confirm)
	addTool(server, prefix+"tampered_state", "Asks, and checks that its state comes back.", sign.confirm)
}

func greet(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	name, ok := field(req.Params.InputResponses, "user_name", "name")
	if !ok {
		return ask("", mcp.InputRequestMap{"user_name": nameQuestion()}), nil
	}
	return text("Hello, %s!", name), nil
}

func askCapital(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	answer, ok := sampled(req.Params.InputResponses, "capital_question")
	if !ok {
		return ask("", mcp.InputRequestMap{
			"capital_question": question("What is the capital of France?", 100),
		}), nil
	}
	return text("%s", answer), nil
}

func askRoots(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	roots, ok := req.Params.InputResponses["client_roots"].(*mcp.ListRootsResult)
	if !ok {
		return ask("", mcp.InputRequestMap{"client_roots": &mcp.ListRootsParams{}}), nil
	}
	res := &mcp.CallToolResult{}
	for _, root := range roots.Roots {
		res.Content = append(res.Content, &mcp.TextContent{Text: fmt.Sprintf("%s: %s", root.Name, root.URI)})
	}
	return res, nil
}

func askWhatIsSupported(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	questions := mcp.InputRequestMap{}
	if caps := req.ClientCapabilities(); caps != nil {
		if caps.Elicitation != nil {
			questions["user_name"] = nameQuestion()
		}
		if caps.Sampling != nil {
			questions["capital_question"] = question("What is the capital of France?", 100)
		}
	}
	if len(questions) == 0 || len(req.Params.InputResponses) > 0 {
		return text("Nothing left to ask."), nil
	}
	return ask("", questions), nil
}

func (s signer) askThreeThings(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	responses := req.Params.InputResponses
	name, named := field(responses, "user_name", "name")
	greeting, greeted := sampled(responses, "greeting")
	roots, rooted := responses["client_roots"].(*mcp.ListRootsResult)
	if !named || !greeted || !rooted {
		return ask(s.sign("three-things"), mcp.InputRequestMap{
			"user_name":    nameQuestion(),
			"greeting":     question("Generate a greeting", 50),
			"client_roots": &mcp.ListRootsParams{},
		}), nil
	}
	if _, err := s.open(req.Params.RequestState); err != nil {
		return nil, err
	}
	return text("%s %s (%d roots)", greeting, name, len(roots.Roots)), nil
}

func (s signer) askTwice(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if color, ok := field(req.Params.InputResponses, "step2", "color"); ok {
		name, err := s.open(req.Params.RequestState)
		if err != nil {
			return nil, err
		}
		return text("%s likes %s.", name, color), nil
	}
	if name, ok := field(req.Params.InputResponses, "step1", "name"); ok {
		return ask(s.sign(name), mcp.InputRequestMap{
			"step2": elicitation("Step 2: What is your favorite color?", oneString("color")),
		}), nil
	}
	return ask(s.sign(""), mcp.InputRequestMap{
		"step1": elicitation("Step 1: What is your name?", oneString("name")),
	}), nil
}

func (s signer) confirm(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if _, ok := req.Params.InputResponses["confirm"].(*mcp.ElicitResult); !ok {
		return ask(s.sign("confirm"), mcp.InputRequestMap{
			"confirm": elicitation("Please confirm",
				`{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}`),
		}), nil
	}
	if _, err := s.open(req.Params.RequestState); err != nil {
		return nil, err
	}
	return text("state-ok"), nil
}

// ask is a result that ends the round with questions to the client.
func ask(state string, questions mcp.InputRequestMap) *mcp.CallToolResult {
	return &mcp.CallToolResult{InputRequests: questions, RequestState: state}
}

func nameQuestion() *mcp.ElicitParams {
	return elicitation("What is your name?", oneString("name"))
}

func elicitation(message, form string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: json.RawMessage(form)}
}

// oneString is a form with one required text field, whose name must need no
// escaping in JSON.
func oneString(name string) string {
	return fmt.Sprintf(`{"type":"object","properties":{%q:{"type":"string"}},"required":[%q]}`, name, name)
}

// field returns the text that the user put in a field of the form with the
// given id. It is false when the form is missing, was not accepted, or lacks
// the field: the tool then asks again, as SEP-2322 wants.
func field(responses mcp.InputResponseMap, id, name string) (string, bool) {
	form, ok := responses[id].(*mcp.ElicitResult)
	if !ok || form.Action != "accept" {
		return "", false
	}
	value, ok := form.Content[name].(string)
	return value, ok
}

// sampled returns the text that the client's model gave to the question with
// the given id, and false when there is none.
func sampled(responses mcp.InputResponseMap, id string) (string, bool) {
	res, ok := responses[id].(*mcp.CreateMessageWithToolsResult)
	if !ok || len(res.Content) == 0 {
		return "", false
	}
	content, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		return "", false
	}
	return content.Text, true
}
