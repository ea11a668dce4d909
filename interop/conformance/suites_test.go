package conformance

import "github.com/modelcontextprotocol/go-sdk/mcp"

// suite is one selection of scenarios of one version of the official package.
type suite struct {
	version string   // of the package; installed as conformance-<version>
	name    string   // what the flags select
	flags   []string // after "server --url URL"
}

// suites lists what is run. Version 0.1.16 is the newest release and ends with
// revision 2025-11-25. The alpha knows 2026-07-28 as well; a requirement set
// runs every scenario of its revision on that revision's wire, and the
// scenarios of unrelated extensions too.
func suites() []suite {
	return []suite{
		{"0.1.16", "active", []string{"--suite", "active"}},
		{"0.2.0-alpha.12", "2025-11-25", []string{"--requirements", "2025-11-25"}},
		{"0.2.0-alpha.12", "2026-07-28", []string{"--requirements", "2026-07-28"}},
	}
}

// mode is a way to set up the SDK's handler.
type mode struct {
	name      string
	stateless bool
}

func modes() []mode {
	return []mode{{"stateful", false}, {"stateless", true}}
}

// options returns the SDK's options for the mode, with an event store of its
// own: without one, a stateful server cannot resume a response.
func (m mode) options() *mcp.StreamableHTTPOptions {
	return &mcp.StreamableHTTPOptions{
		Stateless:  m.stateless,
		EventStore: mcp.NewMemoryEventStore(nil),
	}
}

// runName names a suite in a mode, in baseline.json and as a subtest.
func runName(s suite, m mode) string {
	return s.version + "/" + s.name + "/" + m.name
}
