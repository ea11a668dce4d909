package fault

import (
	"errors"
	"testing"
)

func TestEveryKindIsReadBackFromItsName(t *testing.T) {
	for i, info := range Kinds() {
		if int(info.Kind) != i {
			t.Errorf("kind %d is listed in place %d", info.Kind, i)
		}
		got, err := ParseKind(info.Kind.String())
		if err != nil || got != info.Kind {
			t.Errorf("ParseKind(%q) = %v, %v", info.Kind.String(), got, err)
		}
	}
	if _, err := ParseKind("fire"); !errors.Is(err, ErrUnknownKind) {
		t.Errorf("ParseKind of an unknown name: %v", err)
	}
}

func TestTheFirstRuleThatFitsDecides(t *testing.T) {
	rules := Rules{
		{Tool: "charge", Nth: 2, Action: Action{Kind: EOF}},
		{Nth: 3, Action: Action{Kind: Reset}},
		{Tool: "list", Action: Action{Kind: Hang}},
	}
	for _, tc := range []struct {
		tool       string
		nth, total int
		want       Kind
	}{
		{"charge", 1, 1, None},
		{"charge", 2, 3, EOF},
		{"charge", 3, 4, None},
		{"refund", 1, 3, Reset},
		{"list", 1, 3, Reset},
		{"list", 7, 9, Hang},
	} {
		if got := rules.pick(tc.tool, tc.nth, tc.total); got.Kind != tc.want {
			t.Errorf("call %d of %s, %d of all: %v, want %v", tc.nth, tc.tool, tc.total, got.Kind, tc.want)
		}
	}
}

func TestRulesThatCannotBeObeyedAreRefusedAtTheStart(t *testing.T) {
	for _, rule := range []Rule{
		{Action: Action{Kind: Kill}}, // not on HTTP
		{Nth: -1},
		{Action: Action{Kind: Kind(99)}},
	} {
		if _, err := New("http://127.0.0.1:1", &Options{Rules: Rules{rule}}); !errors.Is(err, ErrBadRule) {
			t.Errorf("HTTP took %+v: %v", rule, err)
		}
	}
	if _, err := NewStdio(&Options{Rules: Rules{{Action: Action{Kind: Reset}}}}); !errors.Is(err, ErrBadRule) {
		t.Errorf("stdio took a reset: %v", err)
	}
	if _, err := New("localhost:80", nil); err == nil {
		t.Error("an upstream without a scheme was taken")
	}
}

func TestMethodIDToolAndKeyAreReadWhereverTheKeyIs(t *testing.T) {
	for body, want := range map[string]message{
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"charge","idempotencyKey":"n.1"}}`:                                        {"tools/call", "7", "charge", "n.1"},
		`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"charge","_meta":{"io.modelcontextprotocol/idempotencyKey":"n.2"}}}`:    {"tools/call", `"a"`, "charge", "n.2"},
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","idempotencyKey":5}}`:                                            {"tools/call", "1", "charge", "5"},
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","IdempotencyKey":"n.3"}}`:                                        {"tools/call", "1", "charge", ""},
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`:                                                           {"notifications/cancelled", "", "", ""},
		`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"name":"charge","_meta":{"io.modelcontextprotocol/idempotencyKey":"n.2"}}}`:      {"tools/list", "2", "", ""},
		` [ {"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"charge"}}, {"jsonrpc":"2.0","id":9,"result":{}}, 17, "text", null ] `: {"tools/call", "3", "charge", ""},
	} {
		got := parseMessages([]byte(body))
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s\n got %+v\nwant %+v", body, got, want)
		}
	}
	for _, body := range []string{"", "  ", "{", "17", "null", `{"id":1,"result":{}}`, `[`, "\xff"} {
		if got := parseMessages([]byte(body)); len(got) != 0 {
			t.Errorf("%q: %+v", body, got)
		}
	}
}

func TestTheAnswerIsTheDataOfTheLastEvent(t *testing.T) {
	sse := "event: message\ndata: {\"method\":\"notifications/progress\"}\n\nevent: message\r\ndata: {\"id\":1}\r\n\r\n: comment\ndata:\n\n"
	if got := string(answerIn("text/event-stream; charset=utf-8", []byte(sse))); got != `{"id":1}` {
		t.Errorf("got %q", got)
	}
	if got := string(answerIn("application/json", []byte(`{"id":2}`))); got != `{"id":2}` {
		t.Errorf("got %q", got)
	}
}
