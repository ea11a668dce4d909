package check

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// WriteJSON writes the report as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// WriteTable writes the report for a terminal, in colour if asked for.
func (r *Report) WriteTable(w io.Writer, colour bool) error {
	t := r.table(colour)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.Style().Options.SeparateRows = false
	_, err := fmt.Fprintf(w, "%s%s\n%s\n%s", r.heading(), t.Render(), r.Summary(), r.advice())
	return err
}

// WriteMarkdown writes the report as a table for an issue or a README.
func (r *Report) WriteMarkdown(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s%s\n\n%s\n", r.heading(), r.table(false).RenderMarkdown(), r.Summary())
	return err
}

func (r *Report) heading() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Subject)
	for _, f := range r.Facts {
		fmt.Fprintf(&b, "- %s: %s\n", f.Name, f.Value)
	}
	if len(r.Facts) > 0 {
		b.WriteByte('\n')
	}
	return b.String()
}

func (r *Report) table(colour bool) table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"check", "level", "result", "detail"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 4, WidthMax: 80, WidthMaxEnforcer: text.WrapSoft}})
	for _, res := range r.Results {
		word := string(res.Status)
		if res.Expected != "" {
			word += " (expected)"
		}
		if colour {
			word = colourOf(res).Sprint(word)
		}
		t.AppendRow(table.Row{res.ID, res.Level, word, res.text()})
	}
	return t
}

// colourOf leaves alone what needs no attention.
func colourOf(res Result) text.Colors {
	switch {
	case res.Expected != "":
		return nil
	case res.Status == Passed:
		return text.Colors{text.FgGreen}
	case res.Status == Failed, res.Status == Broken:
		return text.Colors{text.FgRed, text.Bold}
	case res.Status == Warned:
		return text.Colors{text.FgYellow}
	}
	return nil
}

// text is what the table says beside the status.
func (r Result) text() string {
	parts := []string{r.Title}
	if r.Status != Passed && r.Detail != "" {
		parts = []string{r.Detail}
	}
	if r.Expected != "" {
		parts = append(parts, "expected: "+r.Expected)
	}
	return strings.Join(append(parts, r.Notes...), "; ")
}

// advice names the command that says more of the first breach.
func (r *Report) advice() string {
	for _, res := range r.Results {
		if res.Expected == "" && (res.Status == Failed || res.Status == Warned) {
			return fmt.Sprintf("What a check does, why, and how to fix it: sepcheck explain %s\n", res.ID)
		}
	}
	return ""
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	Seconds string      `xml:"time,attr"`
	Failure *junitText  `xml:"failure,omitempty"`
	Error   *junitText  `xml:"error,omitempty"`
	Skipped *junitText  `xml:"skipped,omitempty"`
	Out     *junitPlain `xml:"system-out,omitempty"`
}

type junitText struct {
	Message string `xml:"message,attr"`
}

type junitPlain struct {
	Text string `xml:",chardata"`
}

// WriteJUnit writes the report as JUnit XML, which CI systems show. A warning
// is a failure there only when strict; else it is in the output of its case.
func (r *Report) WriteJUnit(w io.Writer, strict bool) error {
	suite := junitSuite{Name: r.Subject, Tests: len(r.Results)}
	for _, res := range r.Results {
		c := junitCase{Name: res.ID, Seconds: fmt.Sprintf("%d.%03d", res.Ms/1000, res.Ms%1000)}
		c.Class, _, _ = strings.Cut(res.ID, "/")
		switch {
		case res.Status == Broken:
			c.Error = &junitText{res.Detail}
			suite.Errors++
		case res.Expected == "" && (res.Status == Failed || res.Status == Warned && strict):
			c.Failure = &junitText{res.Detail}
			suite.Failures++
		case res.Status == Skipped:
			c.Skipped = &junitText{res.Detail}
			suite.Skipped++
		}
		if t := res.text(); t != res.Title {
			c.Out = &junitPlain{t}
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
