package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/protocol"
)

var compareIDs = cmp.Comparer(func(a, b protocol.ID) bool { return a == b })

func raw(s string) json.RawMessage { return json.RawMessage(s) }

func TestParseMessageKinds(t *testing.T) {
	one := protocol.NumberID(1)
	failure := &protocol.Error{Code: -32603, Message: "no"}
	for _, test := range []struct {
		in   string
		want protocol.Message
	}{
		{`{"id":1,"method":"m"}`, protocol.Message{Kind: protocol.Request, ID: one, Method: "m"}},
		{`{"id":1,"method":"m","params":{"a":[1]}}`, protocol.Message{Kind: protocol.Request, ID: one, Method: "m", Params: raw(`{"a":[1]}`)}},
		{" \t\r\n{ \"params\" : null , \"method\":\"m\" ,\"id\" :1 } \n", protocol.Message{Kind: protocol.Request, ID: one, Method: "m", Params: raw(`null`)}},
		{`{"method":"m"}`, protocol.Message{Kind: protocol.Notification, Method: "m"}},
		{`{"method":""}`, protocol.Message{Kind: protocol.Notification}},
		{`{"method":"m","params":[]}`, protocol.Message{Kind: protocol.Notification, Method: "m", Params: raw(`[]`)}},
		{`{"id":1,"result":null}`, protocol.Message{Kind: protocol.Response, ID: one, Result: raw(`null`)}},
		{`{"id":1,"result":{"id":2,"method":"n"}}`, protocol.Message{Kind: protocol.Response, ID: one, Result: raw(`{"id":2,"method":"n"}`)}},
		{`{"id":1,"error":{"code":-32603,"message":"no"}}`, protocol.Message{Kind: protocol.ErrorResponse, ID: one, Error: failure}},
		{`{"id":1,"error":{"code":-32603,"message":"no","data":null,"more":1}}`, protocol.Message{
			Kind: protocol.ErrorResponse, ID: one,
			Error: &protocol.Error{Code: -32603, Message: "no", Data: raw(`null`)},
		}},
		// The first kind that fits wins.
		{`{"id":1,"method":"m","result":2,"error":3}`, protocol.Message{Kind: protocol.Request, ID: one, Method: "m"}},
		{`{"method":"m","result":2,"error":3}`, protocol.Message{Kind: protocol.Notification, Method: "m"}},
		{`{"id":1,"error":3,"result":2}`, protocol.Message{Kind: protocol.Response, ID: one, Result: raw(`2`)}},
		// Members of no meaning, and a result that has none here.
		{`{"jsonrpc":"1.0","id":1,"method":"m","ID":2,"Method":7,"x":{}}`, protocol.Message{Kind: protocol.Request, ID: one, Method: "m"}},
		// Names and texts may be spelled with escapes.
		{`{"\u0069d":1,"m\u0065thod":"p\/\u0061\ud83d\ude00"}`, protocol.Message{Kind: protocol.Request, ID: one, Method: "p/a😀"}},
	} {
		got, err := protocol.ParseMessage([]byte(test.in))
		if err != nil {
			t.Errorf("%s: %v", test.in, err)
			continue
		}
		if diff := cmp.Diff(test.want, got, compareIDs); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.in, diff)
		}
	}
}

func TestParseMessageMalformed(t *testing.T) {
	const (
		noKind  = "a message has a method"
		noID    = "id: expected a string or a 64-bit integer, got "
		noTrace = "trace: expected an object, got "
	)
	for _, test := range []struct{ in, want string }{
		{``, "in the middle of a value"},
		{" \n ", "in the middle of a value"},
		{`[]`, "a message is one JSON object"},
		{`[{"id":1,"method":"m"}]`, "a message is one JSON object"},
		{`1`, "a message is one JSON object"},
		{`null`, "a message is one JSON object"},
		{`nope`, "no value"},
		{`{}`, noKind},
		{`{"id":1}`, noKind},
		{`{"result":1}`, noKind},
		{`{"error":{"code":1,"message":""}}`, noKind},
		{`{"id":1,"Method":"m"}`, noKind},
		{`{"id":1,"method":"m"}{}`, "goes on after its object"},
		{`{"id":1,"method":"m"},`, "goes on after its object"},
		{`{"id":1,"method":"m"`, "in the middle of a value"},
		{`{"id":1,"method":"m",}`, "expected the name of a member"},
		{`{"id":1 "method":"m"}`, "expected , or }"},
		{`{"id"1}`, "expected :"},
		{`{"id":}`, "no value"},
		{`{id:1}`, "expected the name of a member"},
		{`{"id":1,"method":1}`, "expected a string, got 1"},
		{`{"id":1,"method":null}`, "method: expected a string, got null"},
		{`{"method":["m"]}`, "method: expected a string, got an array"},
		{`{"id":1,"method":null,"result":1}`, "method: expected a string, got null"},
		{`{"id":1,"error":null}`, "error: expected an object, got null"},
		{`{"id":1,"error":{"message":"m"}}`, "error.code: missing"},
		{`{"id":1,"error":{"code":1}}`, "error.message: missing"},
		{`{"id":1,"error":{"code":1.5,"message":"m"}}`, "error.code: expected a whole number, got 1.5"},
		{`{"id":1,"error":{"code":"1","message":"m"}}`, "error.code: expected a whole number, got a string"},
		// Ids.
		{`{"id":null,"method":"m"}`, noID},
		{`{"id":true,"method":"m"}`, noID},
		{`{"id":false,"result":1}`, noID},
		{`{"id":1.5,"method":"m"}`, noID},
		{`{"id":1.0,"method":"m"}`, noID},
		{`{"id":1e2,"method":"m"}`, noID},
		{`{"id":9223372036854775808,"method":"m"}`, noID},
		{`{"id":-9223372036854775809,"method":"m"}`, noID},
		{`{"id":[],"method":"m"}`, noID},
		{`{"id":{},"method":"m"}`, noID},
		{`{"id":null,"error":{"code":1,"message":"m"}}`, noID},
		{`{"id":"\ud800","method":"m"}`, "half a surrogate pair"},
		// Traces of requests.
		{`{"id":1,"method":"m","trace":1}`, noTrace},
		{`{"id":1,"method":"m","trace":"x"}`, noTrace},
		{`{"id":1,"method":"m","trace":[]}`, noTrace},
		{`{"id":1,"method":"m","trace":false}`, noTrace},
		{`{"id":1,"method":"m","trace":{"traceparent":1}}`, "expected a string, got 1"},
		{`{"id":1,"method":"m","trace":{"tracestate":{}}}`, "trace.tracestate: expected a string, got an object"},
		// Duplicates, wherever they are and however they are spelled.
		{`{"id":1,"id":2}`, `member "id" is there twice`},
		{`{"id":1,"id":1,"method":"m"}`, `member "id" is there twice`},
		{`{"id":1,"\u0069d":1,"method":"m"}`, `member "id" is there twice`},
		{`{"x":1,"x":1,"method":"m"}`, `member "x" is there twice`},
		{`{"":1,"":1,"method":"m"}`, `member "" is there twice`},
		{`{"method":"m","params":{"a":{"b":1,"b":1}}}`, `member "b" is there twice`},
		{`{"method":"m","params":[{"a":[{"b":1,"\u0062":1}]}]}`, `member "b" is there twice`},
		{`{"method":"m","params":{"\ud83d\ude00":1,"😀":2}}`, `member "😀" is there twice`},
		{`{"id":1,"result":{"a\/b":1,"a/b":1}}`, `member "a/b" is there twice`},
		// Texts.
		{"{\"method\":\"a\xff\"}", "invalid UTF-8"},
		{"{\"method\":\"a\xed\xa0\x80\"}", "invalid UTF-8"},
		{"{\"method\":\"m\",\"\xff\":1}", "invalid UTF-8"},
		{"{\"method\":\"" + strings.Repeat("a", 100) + "\xff" + strings.Repeat("a", 100) + "\"}", "invalid UTF-8"},
		{"{\"method\":\"" + strings.Repeat("é", 100) + "\xc3\"}", "invalid UTF-8"},
		{"{\"method\":\"a\xff\\n\",\"params\":{\"x\":\"y\"}}", "invalid UTF-8"},
		{"{\"method\":\"m\"}\xff", "invalid UTF-8"}, // whatever else is wrong
		{"\xef\xbb\xbf{\"method\":\"m\"}", "no value"},
		{"{\"method\":\"a\nb\",\"x\":\"\xff\"}", "invalid UTF-8"},
		{"{\"method\":\"a\nb\"}", "a control character in a string"},
		{"{\"method\":\"a\x00b\"}", "a control character in a string"},
		{`{"method":"\x"}`, "invalid escape"},
		{`{"method":"\u12g4"}`, "invalid escape"},
		{`{"method":"\u+123"}`, "invalid escape"},
		{`{"method":"\u12"}`, "invalid escape"},
		{`{"method":"\u12`, "in the middle of a value"},
		{`{"method":"\`, "in the middle of a value"},
		{`{"method":"\udc00"}`, "half a surrogate pair"},
		{`{"method":"\udc00\ud800"}`, "half a surrogate pair"},
		{`{"method":"\ud800\ud800"}`, "half a surrogate pair"},
		{`{"method":"\ud800x"}`, "half a surrogate pair"},
		{`{"method":"\ud800\n"}`, "half a surrogate pair"},
		{`{"method":"m","\ud800":1}`, "half a surrogate pair"},
		// Numbers and words.
		{`{"method":"m","params":01}`, "expected , or }"},
		{`{"method":"m","params":-}`, "invalid number"},
		{`{"method":"m","params":1.}`, "invalid number"},
		{`{"method":"m","params":.5}`, "no value"},
		{`{"method":"m","params":1e}`, "invalid number"},
		{`{"method":"m","params":1e+}`, "invalid number"},
		{`{"method":"m","params":+1}`, "no value"},
		{`{"method":"m","params":NaN}`, "no value"},
		{`{"method":"m","params":tru}`, "no value"},
		{`{"method":"m","params":truer}`, "expected , or }"},
		{`{"method":"m","params":[1,]}`, "no value"},
		{`{"method":"m","params":[1 2]}`, "expected , or ]"},
		{`{"method":"m","params":[`, "in the middle of a value"},
		{"\ufeff" + `{"method":"m"}`, "no value"},
	} {
		m, err := protocol.ParseMessage([]byte(test.in))
		var syntax *protocol.SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: error %v, want %q", test.in, err, test.want)
		}
		if diff := cmp.Diff(protocol.Message{}, m, compareIDs); diff != "" {
			t.Errorf("%q: a message beside the error:\n%s", test.in, diff)
		}
	}
}

func TestIDsAreEchoed(t *testing.T) {
	for _, test := range []struct {
		wire string
		want protocol.ID
	}{
		{`0`, protocol.NumberID(0)},
		{`1`, protocol.NumberID(1)},
		{`-1`, protocol.MalformedID},
		{`-7`, protocol.NumberID(-7)},
		{`9007199254740993`, protocol.NumberID(1<<53 + 1)},
		{`9223372036854775807`, protocol.NumberID(1<<63 - 1)},
		{`-9223372036854775808`, protocol.NumberID(-1 << 63)},
		{`""`, protocol.TextID("")},
		{`"1"`, protocol.TextID("1")},
		{`"null"`, protocol.TextID("null")},
		{`"a b\n\"\\\u0000"`, protocol.TextID("a b\n\"\\\x00")},
		{`"ü😀"`, protocol.TextID("ü😀")},
		{`"\ud83d\ude00"`, protocol.TextID("😀")},
		{`"\ufffd"`, protocol.TextID("\ufffd")},
	} {
		for _, rest := range []string{`,"method":"m"}`, `,"result":1}`, `,"error":{"code":1,"message":""}}`} {
			m, err := protocol.ParseMessage([]byte(`{"id":` + test.wire + rest))
			if err != nil || m.ID != test.want || m.ID.IsZero() {
				t.Errorf("id %s: %v, %v, want %v", test.wire, m.ID, err, test.want)
			}
		}
		response, err := protocol.AppendResponse(nil, test.want, nil)
		if err != nil {
			t.Fatal(err)
		}
		request, err := protocol.AppendRequest(nil, test.want, "m", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range [][]byte{response, request, protocol.AppendErrorResponse(nil, test.want, protocol.ErrInternal)} {
			if m, err := protocol.ParseMessage(text); err != nil || m.ID != test.want {
				t.Errorf("id %s came back from %s as %v, %v", test.wire, text, m.ID, err)
			}
		}
	}
	if !(protocol.ID{}).IsZero() {
		t.Error("the zero ID is an id")
	}
	if protocol.NumberID(1) == protocol.TextID("1") || protocol.NumberID(0) == (protocol.ID{}) || protocol.TextID("") == (protocol.ID{}) {
		t.Error("ids of different kinds are equal")
	}
}

func TestTraces(t *testing.T) {
	for _, trace := range []string{
		`null`, `{}`, `{"traceparent":null}`, `{"traceparent":"nonsense"}`,
		`{"traceparent":"00-0-0-00","tracestate":"a=b","more":[1]}`, `{"Traceparent":1}`,
	} {
		if _, err := protocol.ParseMessage([]byte(`{"id":1,"method":"m","trace":` + trace + `}`)); err != nil {
			t.Errorf("trace %s: %v", trace, err)
		}
	}
	for _, in := range []string{`{"method":"m","trace":1}`, `{"id":1,"result":1,"trace":1}`} {
		if _, err := protocol.ParseMessage([]byte(in)); err != nil {
			t.Errorf("%s: a trace matters to requests alone, got %v", in, err)
		}
	}
}

// nested is a message whose arrays and objects are depth deep, itself included.
func nested(depth int, open, end string) string {
	return `{"method":"m","params":` + strings.Repeat(open, depth-1) + `1` + strings.Repeat(end, depth-1) + `}`
}

func TestDepthLimit(t *testing.T) {
	for _, test := range []struct{ open, end string }{{"[", "]"}, {`{"a":`, "}"}} {
		if _, err := protocol.ParseMessage([]byte(nested(127, test.open, test.end))); err != nil {
			t.Errorf("%s: 127 deep: %v", test.open, err)
		}
		for _, depth := range []int{128, 129, 100000} {
			_, err := protocol.ParseMessage([]byte(nested(depth, test.open, test.end)))
			if err == nil || !strings.HasSuffix(err.Error(), "nested deeper than 127") {
				t.Errorf("%s: %d deep: %v", test.open, depth, err)
			}
		}
	}
	// As observed: an array in a member of params passes 100 deep, not 126 deep.
	for depth, ok := range map[int]bool{100: true, 125: true, 126: false} {
		in := `{"method":"m","params":{"x":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}}`
		if _, err := protocol.ParseMessage([]byte(in)); (err == nil) != ok {
			t.Errorf("an array %d deep inside params: %v", depth, err)
		}
	}
	// Depth is not a count of what was opened and closed again.
	if _, err := protocol.ParseMessage([]byte(`{"method":"m","params":[` + strings.Repeat(`[],{},`, 1000) + `1]}`)); err != nil {
		t.Error(err)
	}
}

func TestValueLimit(t *testing.T) {
	const limit = "more than 262144 JSON values, the limit of one message"
	// The message, the method and the list are three values.
	list := func(values int) string {
		return `{"method":"m","params":[` + strings.Repeat("0,", values-4) + `0]}`
	}
	object := func(values int) string {
		var b strings.Builder
		b.WriteString(`{"method":"m","params":{`)
		for i := range values - 4 {
			fmt.Fprintf(&b, `"%d":0,`, i)
		}
		return b.String() + `"":0}}`
	}
	for name, build := range map[string]func(int) string{"list": list, "object": object} {
		if _, err := protocol.ParseMessage([]byte(build(protocol.MaxValues))); err != nil {
			t.Errorf("%s: the limit itself: %v", name, err)
		}
		if _, err := protocol.ParseMessage([]byte(build(protocol.MaxValues + 1))); err == nil || err.Error() != limit {
			t.Errorf("%s: one more: %v", name, err)
		}
	}
	if _, err := protocol.ParseMessage([]byte(strings.Repeat("[", 1<<20))); err == nil {
		t.Error("a flood of brackets was accepted")
	}
}

// TestManyNames covers the objects whose names are compared by a map.
func TestManyNames(t *testing.T) {
	for count := 1; count <= 40; count++ {
		var members []string
		for i := range count {
			members = append(members, fmt.Sprintf(`"k%d":{"k%d":{}}`, i, i))
		}
		object := strings.Join(members, ",")
		if _, err := protocol.ParseMessage([]byte(`{"method":"m","params":{` + object + `}}`)); err != nil {
			t.Fatalf("%d names: %v", count, err)
		}
		for _, again := range []int{0, count / 2, count - 1} {
			in := fmt.Sprintf(`{"method":"m","params":{%s,"\u006b%d":0}}`, object, again)
			want := fmt.Sprintf("the member \"k%d\" is there twice", again)
			if _, err := protocol.ParseMessage([]byte(in)); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Fatalf("%d names, k%d again: %v", count, again, err)
			}
		}
	}
}

func TestGuessID(t *testing.T) {
	none := protocol.MalformedID
	for _, test := range []struct {
		in     string
		want   protocol.ID
		answer bool
	}{
		{``, none, false},
		{`  `, none, false},
		{`nonsense`, none, false},
		{`[{"id":1}`, none, false},
		{`{`, none, false},
		{`{"id":1,"method":"m"}`, protocol.NumberID(1), false},
		{`{"id":7,"method":"m","params":{"chunk":"AAAA`, protocol.NumberID(7), false},
		{` {"method":"m" , "id" : "x\n" ,"params":[1,`, protocol.TextID("x\n"), false},
		{`{"params":{"id":5,"x":{"id":6}},"id":7,"me`, protocol.NumberID(7), false},
		{`{"params":{"id":5,"AAA`, none, false},
		{`{"params":{"id":5},"method":"m","x":1`, none, false},
		{`{"id":"x`, none, false},
		{`{"id":true,"method":"m","a":`, none, false},
		{`{"id":1,"id":2,"a":`, protocol.NumberID(1), false},
		{`{"id":1} trailing`, protocol.NumberID(1), false},
		// A number at the end may go on.
		{`{"id":12`, none, false},
		{`{"id":12 `, none, false},
		{`{"id":12,`, protocol.NumberID(12), false},
		{`{"id":12}`, protocol.NumberID(12), false},
		// Answers to requests of ours.
		{`{"id":3,"result":{"data":"AAAA`, protocol.NumberID(3), true},
		{`{"id":3,"error":{"code":1,"message":"AAAA`, protocol.NumberID(3), true},
		{`{"result":[1],"id":3,"x`, protocol.NumberID(3), true},
		{`{"id":3,"params":{"result":"AAA`, protocol.NumberID(3), false},
		{`{"id":3,"method":"m","result":"AAA`, protocol.NumberID(3), false},
		{`{"id":3,"result":1,"method":"m","params":"AAA`, protocol.NumberID(3), false},
	} {
		got, answer := protocol.GuessID([]byte(test.in))
		if got != test.want || answer != test.answer {
			t.Errorf("GuessID(%s) = %v, %v, want %v, %v", test.in, got, answer, test.want, test.answer)
		}
	}
}
