package main

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
	"github.com/mcp-idempotency/mcp-idempotency/schema/internal/messages"
)

// typeScript describes the extension's own types in the style of the MCP
// specification's schema.ts. It stands alone: a program combines its types
// with those of schema.ts, as in `CallToolRequestParams & CallToolParams`.
func typeScript() ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "// %s\n", notice)
	constants(&out)
	if err := unions(&out); err != nil {
		return nil, err
	}
	for _, k := range messages.Kinds() {
		if !k.Part() {
			continue
		}
		if err := writeInterface(&out, k); err != nil {
			return nil, fmt.Errorf("%s: %w", k.Name(), err)
		}
	}
	return out.Bytes(), nil
}

func constants(out *bytes.Buffer) {
	for _, c := range []struct {
		name  string
		value any
		doc   string
	}{
		{"EXTENSION_ID", schema.ExtensionID, "Identifies the extension in `capabilities.extensions`. Results, requests and tools carry its data in `_meta` under the same name."},
		{"META_KEY", schema.MetaKey, "The `_meta` member that carries the key to a server that does not declare `keyParam`."},
		{"PARAM_KEY", schema.ParamKey, "The `params` member that carries the key to a server that declares `keyParam`."},
		{"MAX_KEY_LENGTH", schema.MaxKeyLen, "The longest key, in characters."},
		{"MAX_NAMESPACE_LENGTH", schema.MaxNamespaceLen, "The longest namespace, in characters."},
		{"ERROR_CODE", schema.ErrorCode, "The code of every error of the extension itself. It lies outside the ranges that JSON-RPC and MCP keep for themselves."},
	} {
		comment(out, "", c.doc)
		value := fmt.Sprint(c.value)
		if s, ok := c.value.(string); ok {
			value = strconv.Quote(s)
		}
		fmt.Fprintf(out, "export const %s = %s;\n", c.name, value)
	}
}

// writeInterface writes a struct type. A member's type, optionality and text
// come from the same field and tags as in the JSON Schema.
func writeInterface(out *bytes.Buffer, k messages.Kind) error {
	comment(out, "", k.Doc, "@category "+k.Category)
	fmt.Fprintf(out, "export interface %s {", k.Name())
	for i := range k.Type.NumField() {
		f := k.Type.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		text := f.Tag.Get("jsonschema_description")
		if name == "" || text == "" {
			return fmt.Errorf("field %s needs a json name and a jsonschema_description", f.Name)
		}
		t, err := memberType(f)
		if err != nil {
			return fmt.Errorf("field %s: %w", f.Name, err)
		}
		if !isIdentifier(name) {
			name = strconv.Quote(name)
		}
		if strings.Contains(options, "omitempty") {
			name += "?"
		}
		comment(out, "  ", text, limits(f)...)
		fmt.Fprintf(out, "  %s: %s;\n", name, t)
	}
	if k.Carrier {
		out.WriteString("\n  [key: string]: unknown;\n")
	}
	out.WriteString("}\n")
	return nil
}

func memberType(f reflect.StructField) (string, error) {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case f.Tag.Get("jsonschema") == "enum="+strconv.Itoa(schema.ErrorCode):
		return "typeof ERROR_CODE", nil
	case t == reflect.TypeFor[map[string]any]():
		return "{ [key: string]: unknown }", nil
	case t.Kind() == reflect.Struct, t.Kind() == reflect.String && t.PkgPath() != "":
		return t.Name(), nil
	case t.Kind() == reflect.String:
		return "string", nil
	case t.Kind() == reflect.Bool:
		return "boolean", nil
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return "number", nil
	}
	return "", fmt.Errorf("no TypeScript type for %s", f.Type)
}

// limits turns the constraints of a jsonschema tag into JSDoc tags. Enums are
// types of their own in TypeScript.
func limits(f reflect.StructField) []string {
	const comma = "\x00" // stands for an escaped comma while the tag is split
	tag := strings.ReplaceAll(f.Tag.Get("jsonschema"), `\,`, comma)
	var tags []string
	for part := range strings.SplitSeq(tag, ",") {
		name, value, ok := strings.Cut(part, "=")
		if ok && name != "enum" {
			tags = append(tags, "@"+name+" "+strings.ReplaceAll(value, comma, ","))
		}
	}
	return tags
}

// comment writes a JSDoc comment: the text, then the tags set off from it.
func comment(out *bytes.Buffer, indent, text string, tags ...string) {
	if len(tags) > 0 {
		text += "\n\n" + strings.Join(tags, "\n")
	}
	fmt.Fprintf(out, "\n%s/**\n", indent)
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(out, "%s *%s\n", indent, strings.TrimRight(" "+line, " "))
	}
	fmt.Fprintf(out, "%s */\n", indent)
}

func isIdentifier(s string) bool {
	for _, c := range s {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return s != ""
}
