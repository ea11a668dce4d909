package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeResults lays out result files as the official package does.
func writeResults(t *testing.T, checks map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for scenario, content := range checks {
		sub := filepath.Join(dir, "server-"+scenario+"-2026-12-01T03-39-45-123Z")
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		if content == "" {
			continue // a scenario that threw leaves an empty directory
		}
		if err := os.WriteFile(filepath.Join(sub, "checks.json"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReportIsReadFromFilesAndHeldAgainstTheSummary(t *testing.T) {
	dir := writeResults(t, map[string]string{
		"ping":       `[{"id":"ping","name":"Ping","status":"SUCCESS"},{"id":"sent","status":"INFO"}]`,
		"tools-list": "",
	})
	got, err := readReport(dir, "noise\n=== SUMMARY ===\n✓ ping: 1 passed, 0 failed\n✗ tools-list: 0 passed, 1 failed\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := (counts{Passed: 1, Failed: 1}); got.counts() != want {
		t.Errorf("counts = %+v, want %+v", got.counts(), want)
	}
}

func TestIncompleteReportIsAnError(t *testing.T) {
	const ping = `[{"id":"ping","status":"SUCCESS"}]`
	for name, test := range map[string]struct {
		files  map[string]string
		output string
		want   string
	}{
		"no results":            {nil, "✓ ping: 1 passed, 0 failed\n", "no results"},
		"no summary":            {map[string]string{"ping": ping}, "Running\n", "no summary"},
		"not in the summary":    {map[string]string{"ping": ping, "x": ping}, "✓ ping: 1 passed, 0 failed\n", "not in the summary"},
		"counted differently":   {map[string]string{"ping": ping}, "✓ ping: 2 passed, 0 failed\n", "in the summary"},
		"passed without a file": {map[string]string{"ping": ping}, "✓ ping: 1 passed, 0 failed\n✓ x: 1 passed, 0 failed\n", "in the summary"},
		"cut file":              {map[string]string{"ping": ping[:9]}, "✓ ping: 1 passed, 0 failed\n", "unexpected end"},
	} {
		_, err := readReport(writeResults(t, test.files), test.output)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
}

func TestDifferencesAreFoundInBothDirections(t *testing.T) {
	one := report{"s": {{ID: "a", Status: success}, {ID: "b", Status: success}, {ID: "e", Status: info}}}
	for name, test := range map[string]struct {
		other report
		want  int
	}{
		"another order and other notes": {report{"s": {{ID: "b", Status: success}, {ID: "a", Status: success}}}, 0},
		"another verdict":               {report{"s": {{ID: "a", Status: warning}, {ID: "b", Status: success}}}, 1},
		"a check less":                  {report{"s": {{ID: "a", Status: success}}}, 1},
		"a check twice":                 {report{"s": {{ID: "a", Status: success}, {ID: "a", Status: success}, {ID: "b", Status: success}}}, 1},
		"no scenario":                   {report{}, 1},
		"one scenario more":             {report{"s": one["s"], "t": {{ID: "c", Status: skipped}}}, 1},
	} {
		if got := differences(one, test.other); len(got) != test.want {
			t.Errorf("%s: differences = %q, want %d", name, got, test.want)
		}
		if got := differences(test.other, one); len(got) != test.want {
			t.Errorf("%s, turned round: differences = %q, want %d", name, got, test.want)
		}
	}
}
