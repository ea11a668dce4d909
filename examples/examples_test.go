// Package examples_test runs the examples that end by themselves, as their
// first lines say.
package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryExampleRuns(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"sqlite":     {nil, "charges in the ledger: 1\n"},
		"downstream": {nil, "got 2 requests and made 1 charge\n"},
		"outbox":     {nil, "1 mail sent\n"},
		"postgres":   {[]string{"-database", os.Getenv("SEPCHECK_POSTGRES")}, "charges in the ledger: 10\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "postgres" && c.args[1] == "" {
				t.Skip("SEPCHECK_POSTGRES is not set: the example with PostgreSQL is left out")
			}
			program := filepath.Join(t.TempDir(), name)
			if out, err := exec.Command("go", "build", "-o", program, "./"+name).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.Command(program, c.args...).CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), c.says) {
				t.Errorf("%v, want the output to end in %q:\n%s", err, c.says, out)
			}
		})
	}
}
