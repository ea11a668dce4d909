package schema_test

import (
	"encoding/json"
	"fmt"

	"github.com/mcp-idempotency/mcp-idempotency/schema"
)

// A server declares the extension, and a client forms a key from what the
// server declared.
func Example() {
	declared, err := json.Marshal(schema.Extensions{
		Idempotency: &schema.ServerSettings{KeyNamespace: "q7k2vmx4", RetentionMs: 86_400_000, KeyParam: true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(declared))

	key := "q7k2vmx4" + "." + "4T7QGZ2NHW5BXEK3YVJ6MRDUAC" // the rest is random: crypto/rand.Text
	namespace, _, err := schema.ParseKey(key)
	fmt.Println(namespace, err)
	fmt.Println(schema.ShortKey(key))

	// Output:
	// {"io.modelcontextprotocol/idempotency":{"keyNamespace":"q7k2vmx4","retentionMs":86400000,"keyParam":true}}
	// q7k2vmx4 <nil>
	// q7k2vmx4.4T7QGZ…
}

// A client acts on the outcome, so a reason that it does not know is no
// trouble.
func ExampleErrorData() {
	var data schema.ErrorData
	err := json.Unmarshal([]byte(`{"reason": "regionDraining", "outcome": "notRun", "retryAfterMs": 2000}`), &data)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, known := schema.OutcomeOf(data.Reason); !known {
		fmt.Println("unknown reason:", data.Reason)
	}
	if data.Outcome == schema.OutcomeNotRun && data.RetryAfterMs != nil {
		fmt.Println("same key again in", *data.RetryAfterMs, "ms")
	}

	// Output:
	// unknown reason: regionDraining
	// same key again in 2000 ms
}
