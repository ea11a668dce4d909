package conformance

import (
	"os"
	"strings"
	"testing"
)

// variable says whether the official package is to be run: unset for no, any
// value for yes, and the value "update" to write baseline.json as well.
const variable = "SEPCHECK_CONFORMANCE"

// required skips the test when the official package was not asked for, and
// returns it otherwise.
func required(t *testing.T, version string) tool {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skipf("left out: the official conformance package %s (set %s=1, see doc.go)", version, variable)
	}
	found, err := findTool(version)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestExtensionChangesNoOfficialResult(t *testing.T) {
	was, err := readBaseline()
	if err != nil {
		t.Fatal(err)
	}
	now := baseline{Comment: was.Comment, Runs: map[string]expectation{}}
	for _, s := range suites() {
		for _, m := range modes() {
			name := runName(s, m)
			now.Runs[name] = was.Runs[name]
			t.Run(name, func(t *testing.T) {
				official := required(t, s.version)
				plain := official.run(t, s.flags, serve(t, bare, m))
				changed := official.run(t, s.flags, serve(t, extended, m))

				got := plain.counts()
				t.Logf("bare: %+v", got)
				for _, difference := range differences(plain, changed) {
					t.Errorf("not the same with the extension: %s", difference)
				}
				now.Runs[name] = expectation{Counts: got, Known: was.Runs[name].Known}
				if os.Getenv(variable) == "update" {
					return
				}
				for _, problem := range was.Runs[name].problems(plain) {
					t.Errorf("not as in %s: %s", baselineFile, problem)
				}
			})
		}
	}
	if os.Getenv(variable) == "update" {
		if err := now.write(); err != nil {
			t.Fatal(err)
		}
		t.Logf("wrote %s", baselineFile)
	}
}

// The comparison is only worth something if it sees a difference.
func TestComparisonSeesOneChangedAnswer(t *testing.T) {
	s, m := suites()[0], modes()[0]
	official := required(t, s.version)
	found := differences(
		official.run(t, s.flags, serve(t, bare, m)),
		official.run(t, s.flags, serve(t, broken, m)))
	if len(found) != 1 || !strings.HasPrefix(found[0], "tools-call-error\n") {
		t.Errorf("differences = %q, want the scenario tools-call-error alone", found)
	}
}
