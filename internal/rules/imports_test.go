package rules

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/mcp-idempotency/mcp-idempotency"

const driver = "the driver of one store is not linked by those who do not use it"

// deps lists what a package imports, directly and not, without its tests.
func deps(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pkg)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}

func TestImportArrowsPointOneWay(t *testing.T) {
	for _, rule := range []struct{ pkg, never, why string }{
		{"./ext/idempotency", module + "/ext/clientretry", "a server does not carry the client"},
		{"./ext/clientretry", module + "/ext/idempotency", "a client does not carry the server"},
		{"./ext/idempotency", "github.com/spf13/cobra", "libraries carry no command line"},
		{"./ext/clientretry", "github.com/hashicorp/golang-lru", "the client keeps no result cache"},
		{"./ext/idempotency", "github.com/invopop/jsonschema", "only the generator of the schema needs it"},
		{"./ext/idempotency", "github.com/golang/mock", "mocks are for tests"},
		{"./ext/clientretry", "github.com/golang/mock", "mocks are for tests"},
		{"./ext/idempotency/store", "github.com/modelcontextprotocol/go-sdk", "a store knows nothing of MCP"},
		{"./ext/idempotency/store/memory", "github.com/modelcontextprotocol/go-sdk", "a store knows nothing of MCP"},
		{"./internal/wire", module + "/ext", "the wire form is below both sides"},
		{"./ext/idempotency", "github.com/jackc/pgx", driver},
		{"./ext/idempotency", "github.com/redis/go-redis", driver},
		{"./ext/idempotency", "modernc.org/sqlite", driver},
		{"./ext/idempotency/store/sqlite", "github.com/jackc/pgx", driver},
		{"./ext/idempotency/store/sqlite", "github.com/redis/go-redis", driver},
		{"./ext/idempotency/store/postgres", "github.com/redis/go-redis", driver},
		{"./ext/idempotency/store/postgres", "modernc.org/sqlite", driver},
		{"./ext/idempotency/store/redis", "github.com/jackc/pgx", driver},
		{"./ext/idempotency/store/redis", "modernc.org/sqlite", driver},
	} {
		for _, dep := range deps(t, rule.pkg) {
			if dep == rule.never || strings.HasPrefix(dep, rule.never+"/") {
				t.Errorf("%s imports %s: %s", rule.pkg, dep, rule.why)
			}
		}
	}
}

func TestTheSDKIsUsedUnmodified(t *testing.T) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{if .Replace}}{{.Path}}{{end}}", "all")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(out)); len(got) > 0 {
		t.Errorf("replaced modules: %v", got)
	}
}
