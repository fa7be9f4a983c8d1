package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"execserver/protocol"
)

// reference parses an envelope with encoding/json alone; ok is false for what
// the wire refuses.
func reference(data []byte) (m protocol.Message, ok bool) {
	if !json.Valid(data) || !utf8.Valid(data) || halfPair(data) || !withinLimits(data) {
		return m, false
	}
	var members map[string]json.RawMessage
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); trimmed[0] != '{' || json.Unmarshal(data, &members) != nil {
		return m, false
	}
	// String accepts null, as encoding/json does not tell it from "".
	str := func(raw json.RawMessage) (s string, ok bool) {
		return s, raw != nil && raw[0] == '"' && json.Unmarshal(raw, &s) == nil
	}
	integer := func(raw json.RawMessage) (n int64, ok bool) {
		n, err := strconv.ParseInt(string(raw), 10, 64)
		return n, err == nil
	}
	id, hasID := members["id"]
	if hasID {
		if s, ok := str(id); ok {
			m.ID = protocol.TextID(s)
		} else if n, ok := integer(id); ok {
			m.ID = protocol.NumberID(n)
		} else {
			return m, false
		}
	}
	m.Params = members["params"]
	method, hasMethod := members["method"]
	result, hasResult := members["result"]
	failure, hasFailure := members["error"]
	switch {
	case hasMethod:
		m.Kind = protocol.Notification
		if hasID {
			m.Kind = protocol.Request
			if m.Trace, ok = traceOf(members["trace"], str); !ok {
				return m, false
			}
		}
		m.Method, ok = str(method)
		return m, ok
	case hasID && hasResult:
		m.Kind, m.Result = protocol.Response, result
		return m, true
	case hasID && hasFailure:
		var e map[string]json.RawMessage
		if failure[0] != '{' || json.Unmarshal(failure, &e) != nil {
			return m, false
		}
		code, ok1 := integer(e["code"])
		text, ok2 := str(e["message"])
		m.Kind, m.Error = protocol.ErrorResponse, &protocol.Error{Code: protocol.Code(code), Message: text, Data: e["data"]}
		return m, ok1 && ok2
	}
	return m, false
}

// traceOf returns the trace context of a request, and whether it is a valid one.
func traceOf(trace json.RawMessage, str func(json.RawMessage) (string, bool)) (t protocol.TraceContext, ok bool) {
	if trace == nil || trace[0] == 'n' {
		return t, true
	}
	var members map[string]json.RawMessage
	if trace[0] != '{' || json.Unmarshal(trace, &members) != nil {
		return t, false
	}
	for name, text := range map[string]*string{"traceparent": &t.Parent, "tracestate": &t.State} {
		if v := members[name]; v != nil && v[0] != 'n' {
			if *text, ok = str(v); !ok {
				return t, false
			}
		}
	}
	return t, true
}

// halfPair reports half a surrogate pair among the escapes of valid JSON.
func halfPair(data []byte) bool {
	unit := func(i int) rune {
		if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
			return -1
		}
		n, _ := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
		return rune(n)
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		if r := unit(i); utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, unit(i+6)) == utf8.RuneError {
				return true
			}
			i += 6
		}
		i++
	}
	return false
}

// withinLimits counts values and depth of valid JSON, and looks for names given
// twice.
func withinLimits(data []byte) bool {
	type open struct {
		names map[string]bool // nil for an array
		value bool            // the next token is a value
	}
	var stack []open
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	for values := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return true
		}
		if delim, ok := token.(json.Delim); ok && (delim == '}' || delim == ']') {
			stack = stack[:len(stack)-1]
			continue
		}
		if n := len(stack) - 1; n >= 0 && stack[n].names != nil {
			if !stack[n].value {
				name := token.(string)
				if stack[n].names[name] {
					return false
				}
				stack[n].names[name], stack[n].value = true, true
				continue
			}
			stack[n].value = false
		}
		if values++; values > 262144 {
			return false
		}
		switch token {
		case json.Delim('{'):
			stack = append(stack, open{names: map[string]bool{}})
		case json.Delim('['):
			stack = append(stack, open{})
		}
		if len(stack) > 127 {
			return false
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{
		`{"id":1,"method":"m","params":{"a":[1,-0.5e+3,"\ud83d\ude00",true,null]},"trace":{"traceparent":"x"}}`,
		` {"jsonrpc":"2.0","method":"m"} `, `{"id":"","result":{"a":{}}}`, `{"id":-9,"error":{"code":-1,"message":"m","data":[]}}`,
		`{"id":null,"method":"m"}`, `{"a":1,"\u0061":2}`, `[{}]`, `{"method":"\ud800"}`, "{\"method\":\"\xff\"}", `{"id":01}`, `{}x`,
		nested(127, "[", "]"), nested(128, "[", "]"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		got, err := protocol.ParseMessage(data)
		want, ok := reference(data)
		if !bytes.Equal(data, before) {
			t.Fatalf("ParseMessage changed %q to %q", before, data)
		}
		if (err == nil) != ok {
			t.Fatalf("ParseMessage(%q): error %v, the reference says %v", data, err, ok)
		}
		if err != nil {
			if _, ok := errors.AsType[*protocol.SyntaxError](err); !ok || !utf8.ValidString(err.Error()) {
				t.Fatalf("ParseMessage(%q): error %#v", data, err)
			}
		} else if !reflect.DeepEqual(got, want) {
			t.Fatalf("ParseMessage(%q) =\n%+v, want\n%+v", data, got, want)
		}
		guessCuts(t, data, got, err == nil)
	})
}

// guessCuts cuts a message everywhere: the guess is right or there is none.
func guessCuts(t *testing.T, data []byte, whole protocol.Message, valid bool) {
	for cut := 0; cut <= len(data) && cut < 512; cut++ {
		id, answer := protocol.GuessID(data[:cut])
		if !valid || id == protocol.MalformedID {
			continue
		}
		if id != whole.ID {
			t.Fatalf("GuessID(%q) = %v, the message has %v", data[:cut], id, whole.ID)
		}
		if request := whole.Kind == protocol.Request; answer && request && cut == len(data) {
			t.Fatalf("GuessID(%q) takes a request for an answer", data)
		}
	}
}

func FuzzDecodeParams(f *testing.F) {
	names := make([]string, 0, len(decoders))
	for name := range decoders {
		names = append(names, name)
	}
	sort.Strings(names)
	for i, name := range names {
		f.Add(uint8(i), []byte(whole[name]))
		f.Add(uint8(i), []byte(strings.Replace(whole[name], `"`, `"`+strings.Repeat("A", 300), 1)))
	}
	f.Add(uint8(0), []byte(`{"processId":"p","argv":["`+strings.Repeat(`","`, 500)+`"],"cwd":"/","env":{"a":"b"},"tty":true,"metadata":{"threadId":null},"envPolicy":{"inherit":"none"}}`))
	for _, in := range forms {
		f.Add(uint8(slices.Index(names, "ExecParams")), []byte(in))
	}
	f.Fuzz(func(t *testing.T, which uint8, params []byte) {
		name := names[int(which)%len(names)]
		m, err := protocol.ParseMessage([]byte(`{"id":1,"method":"m","params":` + string(params) + `}`))
		if err != nil || m.Params == nil {
			return // decoders get what was parsed
		}
		before := bytes.Clone(m.Params)
		var start, end runtime.MemStats
		runtime.ReadMemStats(&start)
		got, err := decoders[name](m.Params)
		runtime.ReadMemStats(&end)
		if spent, bound := end.TotalAlloc-start.TotalAlloc, uint64(1<<20+100*len(params)); spent > bound {
			t.Fatalf("%s: %d bytes allocated for %d bytes of params", name, spent, len(params))
		}
		if !bytes.Equal(m.Params, before) {
			t.Fatalf("%s changed %q to %q", name, before, m.Params)
		}
		again, errAgain := decoders[name](m.Params)
		if !reflect.DeepEqual(got, again) || (err == nil) != (errAgain == nil) {
			t.Fatalf("%s(%q) = %+v, %v, then %+v, %v", name, m.Params, got, err, again, errAgain)
		}
		if err != nil {
			if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != protocol.CodeInvalidParams || len(e.Message) > 1<<10+2*len(params) {
				t.Fatalf("%s(%q): error %#v", name, m.Params, err)
			}
			return
		}
		followsEncodingJSON(t, name, m.Params, got)
		_, _ = protocol.DecodeParams[protocol.NoParams](m.Params)
		_, _ = protocol.DecodeSandbox(m.Params, true)
	})
}

// followsEncodingJSON spells decoded params with encoding/json and decodes
// them again.
func followsEncodingJSON(t *testing.T, name string, params []byte, got any) {
	switch got.(type) {
	case protocol.WriteParams, protocol.Output, protocol.HTTPBodyDelta, protocol.WriteFileParams, protocol.WriteBlockParams:
		return // these have no spelling of their own
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatalf("%s(%q) = %+v: %v", name, params, got, err)
	}
	again, err := decoders[name](text)
	if err != nil {
		t.Fatalf("%s(%q): spelled %s: %v", name, params, text, err)
	}
	twice, err := json.Marshal(again)
	if err != nil || !bytes.Equal(text, twice) {
		t.Fatalf("%s(%q): spelled %s, then %s, %v", name, params, text, twice, err)
	}
}
