package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-idempotency/mcp-idempotency/internal/check"
)

const explainHelp = `Says what a check does, which section of the SEP it is from, why it matters and
how to fix a peer that fails it.

Without an argument it lists all checks. A pattern such as 'server/replay/*'
explains every check that it fits.

` + exitCodesHelp

func newExplain() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "explain [CHECK]",
		Short: "Say what a check does, why, and how to fix what it finds",
		Long:  explainHelp,
		Example: `  sepcheck explain
  sepcheck explain server/replay/equal
  sepcheck explain 'client/*/*'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all := allChecks()
			var found []check.Info
			pattern := ""
			if len(args) > 0 {
				pattern = args[0]
			}
			for _, i := range all {
				if ok, err := path.Match(pattern, i.ID); pattern == "" || err == nil && ok {
					found = append(found, i)
				}
			}
			if len(found) == 0 {
				return usageError{fmt.Errorf("there is no check %q; 'sepcheck explain' lists them all", pattern), cmd.CommandPath()}
			}
			return explain(cmd.OutOrStdout(), format, found, pattern != "")
		},
	}
	cmd.Flags().StringVar(&format, "format", "text", "output: text or json")
	return cmd
}

// explanation is an Info with what explain alone shows.
type explanation struct {
	check.Info
	Does string `json:"does"`
	Why  string `json:"why"`
	Fix  string `json:"fix"`
}

func explain(w io.Writer, format string, infos []check.Info, whole bool) error {
	switch format {
	case "json":
		out := make([]explanation, len(infos))
		for i, info := range infos {
			out[i] = explanation{info, info.Does, info.Why, info.Fix}
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(out)
	case "text":
	default:
		return usageError{errors.New("--format is one of text, json"), "sepcheck explain"}
	}
	var b strings.Builder
	for i, info := range infos {
		if !whole {
			fmt.Fprintf(&b, "%-44s %-11s  %s\n", info.ID, info.Level, info.Title)
			continue
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s\n%s: %s.\nSEP, %q\n\nWhat it does: %s\nWhy it matters: %s\nHow to fix it: %s\n",
			info.ID, info.Level, info.Title, info.Section, info.Does, info.Why, info.Fix)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
