package schema_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestGeneratedFilesAreFresh(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("go", "run", "./internal/gen", "-out", dir).CombinedOutput(); err != nil {
		t.Fatalf("the generator: %v\n%s", err, out)
	}
	for _, name := range []string{"schema.json", "schema.ts"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s does not fit the Go types: run `go generate ./schema`", name)
		}
	}
}

func TestSchemaImportsTheStandardLibraryAlone(t *testing.T) {
	const self = "github.com/mcp-idempotency/mcp-idempotency/schema"
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(out)); len(got) != 1 || got[0] != self {
		t.Errorf("packages outside the standard library: %q, want only %q", got, self)
	}
}
