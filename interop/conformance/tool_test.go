package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The longest that one run of the official package may take. It needs a few
// seconds, and gives a scenario that hangs 30 seconds of its own.
const runTimeout = 4 * time.Minute

// tool is an installed version of the official package.
type tool struct {
	node   string // the Node that runs it
	script string // its command line program
}

// findTool returns the installed package of that version, or says what is
// missing. It looks at files only.
func findTool(version string) (tool, error) {
	dir := filepath.Join("node_modules", "conformance-"+version)
	found := tool{
		node:   filepath.Join("node_modules", "node", "bin", "node"),
		script: filepath.Join(dir, "dist", "index.js"),
	}
	for _, path := range []string{found.node, found.script} {
		if _, err := os.Stat(path); err != nil {
			return tool{}, fmt.Errorf("%w (run interop/conformance/install.sh)", err)
		}
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return tool{}, err
	}
	var installed struct{ Version string }
	if err := json.Unmarshal(manifest, &installed); err != nil {
		return tool{}, fmt.Errorf("%s: %w", dir, err)
	}
	if installed.Version != version {
		return tool{}, fmt.Errorf("%s holds version %q (run interop/conformance/install.sh)", dir, installed.Version)
	}
	return found, nil
}

// run tests the server at url and returns what the package found. The package
// is killed when the test ends or runTimeout is over.
func (l tool) run(t *testing.T, flags []string, url string) report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()

	results := t.TempDir()
	args := append([]string{l.script, "server", "--url", url, "--output-dir", results}, flags...)
	cmd := exec.CommandContext(ctx, l.node, args...)
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	cmd.WaitDelay = 5 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	runErr := cmd.Run()
	if ctx.Err() != nil {
		runErr = errors.Join(context.Cause(ctx), runErr)
	}

	// Exit code 1 stands for a failed check as well as for a crash, so it is
	// the files and the summary that tell whether the run is complete.
	var exit *exec.ExitError
	complete := runErr == nil || errors.As(runErr, &exit) && exit.ExitCode() == 1
	if !complete || ctx.Err() != nil {
		t.Fatalf("official conformance package: %v\n%s", runErr, tail(output.String()))
	}
	found, err := readReport(results, output.String())
	if err != nil {
		t.Fatalf("official conformance package: %v\n%s", err, tail(output.String()))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output for %s ends with:\n%s", url, tail(output.String()))
		}
	})
	return found
}

// tail returns the last lines of output, where the summary is.
func tail(output string) string {
	const lines = 40
	all := strings.Split(strings.TrimRight(output, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
