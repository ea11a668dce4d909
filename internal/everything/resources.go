package everything

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addResources adds two constant resources, one to subscribe to, and a template.
func addResources(server *mcp.Server) {
	addResource(server, &mcp.Resource{
		URI:         "test://static-text",
		Name:        "static-text",
		Description: "A constant text.",
		MIMEType:    "text/plain",
	}, mcp.ResourceContents{Text: "This is the content of the static text resource."})

	addResource(server, &mcp.Resource{
		URI:         "test://static-binary",
		Name:        "static-binary",
		Description: "A constant image.",
		MIMEType:    "image/png",
	}, mcp.ResourceContents{Blob: redPixel()})

	addResource(server, &mcp.Resource{
		URI:         "test://watched-resource",
		Name:        "watched-resource",
		Description: "A text to subscribe to.",
		MIMEType:    "text/plain",
	}, mcp.ResourceContents{Text: "Nothing has happened yet."})

	server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: templatePrefix + "{id}" + templateSuffix,
		Name:        "template",
		Description: "Data for any id.",
		MIMEType:    "application/json",
	}, readTemplate)
}

// The text around the id in a URI of the template.
const (
	templatePrefix = "test://template/"
	templateSuffix = "/data"
)

// addResource adds a resource with constant contents. The SDK fills in the
// URI and the media type of an answer.
func addResource(server *mcp.Server, resource *mcp.Resource, contents mcp.ResourceContents) {
	server.AddResource(resource, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		answer := contents // a copy for each caller: the SDK writes into it
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&answer}}, nil
	})
}

func readTemplate(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, templatePrefix), templateSuffix)
	data, err := json.Marshal(struct {
		ID           string `json:"id"`
		TemplateTest bool   `json:"templateTest"`
		Data         string `json:"data"`
	}{id, true, "Data for ID: " + id})
	if err != nil {
		return nil, err
	}
	return &mcp.ReadResourceResult{
		Contents: []*mcp.ResourceContents{{Text: string(data)}},
	}, nil
}
