package everything

// The forms that elicitation scenarios check field by field. They are JSON
// text because some of what the scenarios want (enumNames, oneOf with const)
// has no counterpart in Go types.

// contactForm asks for two strings.
const contactForm = `{
	"type": "object",
	"properties": {
		"username": {"type": "string", "description": "User's response"},
		"email": {"type": "string", "description": "User's email address"}
	},
	"required": ["username", "email"]
}`

// defaultsForm has a default for every primitive type (SEP-1034).
const defaultsForm = `{
	"type": "object",
	"properties": {
		"name": {"type": "string", "description": "User name", "default": "John Doe"},
		"age": {"type": "integer", "description": "User age", "default": 30},
		"score": {"type": "number", "description": "User score", "default": 95.5},
		"status": {
			"type": "string",
			"description": "User status",
			"enum": ["active", "inactive", "pending"],
			"default": "active"
		},
		"verified": {"type": "boolean", "description": "Verification status", "default": true}
	}
}`

// choicesForm has the five kinds of choice (SEP-1330).
const choicesForm = `{
	"type": "object",
	"properties": {
		"untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
		"titledSingle": {
			"type": "string",
			"oneOf": [
				{"const": "value1", "title": "First Option"},
				{"const": "value2", "title": "Second Option"},
				{"const": "value3", "title": "Third Option"}
			]
		},
		"legacyEnum": {
			"type": "string",
			"enum": ["opt1", "opt2", "opt3"],
			"enumNames": ["Option One", "Option Two", "Option Three"]
		},
		"untitledMulti": {
			"type": "array",
			"items": {"type": "string", "enum": ["option1", "option2", "option3"]}
		},
		"titledMulti": {
			"type": "array",
			"items": {
				"anyOf": [
					{"const": "value1", "title": "First Choice"},
					{"const": "value2", "title": "Second Choice"},
					{"const": "value3", "title": "Third Choice"}
				]
			}
		}
	}
}`
