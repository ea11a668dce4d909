// Command bench runs the benchmarks of the extension and prints them as a
// table: what a call costs against the bare SDK, as ratios of runs that were
// made side by side, and what the parts cost.
//
//	go run ./internal/cmd/bench [-rounds 200]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
)

func main() {
	rounds := flag.Int("rounds", 200, "rounds of paired batches per comparison; more narrows the spread")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Runs the benchmarks and prints ratios to the bare SDK, and the cost of the parts.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, rounds int) error {
	calls, err := measure(ctx, "^BenchmarkCall$", fmt.Sprintf("%dx", rounds), "./ext/idempotency", "./ext/clientretry")
	if err != nil {
		return err
	}
	parts, err := measure(ctx, "^Benchmark(Store|Fingerprint)$", "1s", "./ext/idempotency")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s %s/%s, %d CPUs. Median over %d paired rounds of the ratio to the bare SDK, and the quartiles.\n\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), rounds)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "benchmark\tvariant\tmedian\tquartiles")
	for _, b := range calls {
		printPairs(tw, b)
	}
	fmt.Fprintln(tw)
	fmt.Fprintln(tw, "part\ttime\tallocations\t")
	for _, b := range parts {
		fmt.Fprintf(tw, "%s\t%.0f ns\t%.0f\t\n", b.name, b.metrics["ns/op"], b.metrics["allocs/op"])
	}
	return tw.Flush()
}

func printPairs(w io.Writer, b result) {
	for _, unit := range b.units {
		if base, ok := strings.CutSuffix(unit, "-µs"); ok {
			fmt.Fprintf(w, "%s\t%s\t%.0f µs\t\n", b.name, base, b.metrics[unit])
		}
	}
	for _, unit := range b.units {
		variant, ok := strings.CutSuffix(unit, "-%")
		if !ok || strings.HasSuffix(variant, "-q1") || strings.HasSuffix(variant, "-q3") {
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%+.1f %%\t%+.1f … %+.1f %%\n", b.name, variant, b.metrics[unit],
			b.metrics[variant+"-q1-%"], b.metrics[variant+"-q3-%"])
	}
}

// result is one line of `go test -bench`.
type result struct {
	name    string
	units   []string // in the order of the line
	metrics map[string]float64
}

var benchLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// measure runs the benchmarks of the packages one after the other.
func measure(ctx context.Context, pattern, benchtime string, packages ...string) ([]result, error) {
	var results []result
	for _, pkg := range packages {
		found := false
		fmt.Fprintf(os.Stderr, "measuring %s in %s …\n", pattern, pkg)
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", pattern, "-benchtime", benchtime, "-benchmem", "-timeout", "30m", pkg)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
		}
		for line := range strings.Lines(string(out)) {
			m := benchLine.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				continue
			}
			r := result{name: m[1], metrics: map[string]float64{}}
			fields := strings.Fields(m[2])
			for i := 0; i+1 < len(fields); i += 2 {
				v, err := strconv.ParseFloat(fields[i], 64)
				if err != nil {
					return nil, fmt.Errorf("reading %q: %w", line, err)
				}
				r.units = append(r.units, fields[i+1])
				r.metrics[fields[i+1]] = v
			}
			results = append(results, r)
			found = true
		}
		if !found {
			return nil, fmt.Errorf("no benchmark of %s matches %s", pkg, pattern)
		}
	}
	return results, nil
}
