package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// regions are the marked parts of the example programs.
func regions(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../examples/*/main.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	found := map[string]string{}
	marked := regexp.MustCompile(`(?s)\t// README: (\w+)\n(.*?)\t// README: end\n`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range marked.FindAllStringSubmatch(string(b), -1) {
			found[m[1]] = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(m[2], "")
		}
	}
	return found
}

func TestEveryGoBlockOfTheREADMEIsCompiledCode(t *testing.T) {
	code := regions(t)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readme(t), -1)
	if len(blocks) == 0 || len(blocks) != len(code) {
		t.Errorf("%d Go blocks in the README, %d marked regions in examples/", len(blocks), len(code))
	}
	for _, b := range blocks {
		ok := false
		for _, c := range code {
			ok = ok || c == b[1]
		}
		if !ok {
			t.Errorf("this block of the README is in no example:\n%s", b[1])
		}
	}
}

func TestTheREADMEGivesExactlyTwoCommands(t *testing.T) {
	var commands []string
	for _, b := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(readme(t), -1) {
		commands = append(commands, strings.TrimSpace(b[1]))
	}
	want := []string{"go run ./cmd/sepcheck demo", "go test ./..."}
	if !slices.Equal(commands, want) {
		t.Errorf("commands of the README are %q, want %q", commands, want)
	}
}

func TestLinksWithinTheRepositoryResolve(t *testing.T) {
	for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(readme(t), -1) {
		if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
			t.Errorf("the README links to %s: %v", m[1], err)
		}
	}
}
