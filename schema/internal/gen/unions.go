package main

import (
	"bytes"
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// unions writes the string types of the wire: what a tool makes of keys, and
// outcomes and reasons as the table has them.
func unions(out *bytes.Buffer) error {
	comment(out, "", "How a tool treats idempotency keys.\n\n"+
		"- `optional`: a call may carry one.\n"+
		"- `required`: a call without one is refused.\n"+
		"- `unsupported`: a call with one is refused.", "@category `tools/list`")
	fmt.Fprintf(out, "export type KeyUse = %q | %q | %q;\n", schema.KeyOptional, schema.KeyRequired, schema.KeyUnsupported)

	if err := outcomes(out); err != nil {
		return err
	}

	comment(out, "", "The reasons that the extension defines, each with the outcome that it comes with.", "@category Errors")
	out.WriteString("export interface ReasonOutcomes {")
	for _, row := range schema.Reasons() {
		comment(out, "  ", row.When)
		fmt.Fprintf(out, "  %s: %q;\n", row.Reason, row.Outcome)
	}
	out.WriteString("}\n")

	comment(out, "", "A reason that the extension defines.", "@category Errors")
	out.WriteString("export type KnownReason = keyof ReasonOutcomes;\n")
	comment(out, "", "Why the extension did not answer a call with a result. A reader handles a reason that it does not know by its outcome alone.", "@category Errors")
	out.WriteString("export type Reason = KnownReason | string;\n")
	return nil
}

func outcomes(out *bytes.Buffer) error {
	doc := "What became of a call, as far as the server can tell. It is what a client acts on.\n"
	union := "export type Outcome ="
	means := map[schema.Outcome]string{
		schema.OutcomeNotRun:     "this attempt did not run; says nothing of attempts lost before or still on their way.",
		schema.OutcomeNeverRan:   "no attempt with this key ran or ever will.",
		schema.OutcomeInProgress: "an attempt with this key is running.",
		schema.OutcomeCompleted:  "the tool ran to its end; its result is not to be had.",
		schema.OutcomeUnknown:    "an attempt started and how it ended is not known.",
	}
	for _, group := range byOutcome() {
		text, ok := means[group.outcome]
		if !ok {
			return fmt.Errorf("outcome %q has no description", group.outcome)
		}
		doc += fmt.Sprintf("\n- `%s`: %s", group.outcome, text)
		union += fmt.Sprintf("\n  | %q", group.outcome)
	}
	comment(out, "", doc, "@category Errors")
	fmt.Fprintf(out, "%s;\n", union)
	return nil
}
