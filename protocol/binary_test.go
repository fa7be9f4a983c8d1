package protocol_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"reflect"
	"testing"

	"execserver/protocol"
)

// asJSON returns the JSON message that means the same as a binary one, whose data is the
// member of this name.
func asJSON(m protocol.Message, name string) []byte {
	with := func(head json.RawMessage) json.RawMessage { return protocol.WithData(head, name, m.Data) }
	var text []byte
	switch m.Kind {
	case protocol.Request:
		text, _ = protocol.AppendRequest(nil, m.ID, m.Method, with(m.Params))
	case protocol.Notification:
		text, _ = protocol.AppendNotification(nil, m.Method, with(m.Params))
	default:
		text, _ = protocol.AppendResponse(nil, m.ID, with(m.Result))
	}
	return text
}

// decodings decode the params with data, from a binary message and from JSON.
var decodings = []struct {
	member string
	binary func(raw json.RawMessage, data []byte) (any, error)
}{
	{"chunk", func(raw json.RawMessage, data []byte) (any, error) {
		return protocol.DecodeBulk[protocol.WriteParams](raw, data)
	}},
	{"chunk", func(raw json.RawMessage, data []byte) (any, error) {
		return protocol.DecodeBulk[protocol.WriteBlockParams](raw, data)
	}},
	{"chunk", func(raw json.RawMessage, data []byte) (any, error) {
		return protocol.DecodeBulk[protocol.Output](raw, data)
	}},
	{"chunk", func(raw json.RawMessage, data []byte) (any, error) {
		return protocol.DecodeBulk[protocol.TCPData](raw, data)
	}},
	{"dataBase64", func(raw json.RawMessage, data []byte) (any, error) {
		p, err := protocol.DecodeBulk[protocol.WriteFileParams](raw, data)
		if err == nil {
			p.Data, err = p.Content()
			p.DataBase64 = nil
		}
		return p, err
	}},
}

func FuzzBinary(f *testing.F) {
	add := func(head, data string) { f.Add(protocol.AppendBinary(nil, []byte(head), []byte(data))) }
	add(`{"id":1,"method":"process/write","params":{"processId":"p","writeId":"1"}}`, "a\n\x00b")
	add(`{"method":"process/output","params":{"processId":"p","seq":1,"stream":"stdout"}}`, "")
	add(`{"id":"a","method":"fs/writeBlock","params":{"handleId":"h","offset":7}}`, "block")
	add(`{"id":2,"method":"fs/writeFile","params":{"path":"file:///a","mode":420}}`, "content")
	add(`{"id":3,"result":{"eof":true}}`, "x")
	add(`{"id":3,"result":{}}`, "x")
	add(`{"id":3,"method":"process/write","params":{"processId":"p","chunk":"YQ=="}}`, "x")
	add(`{"id":3,"error":{"code":1,"message":"m"}}`, "x")
	add(`{"id":3,"method":"m","params":{} }`, "")
	f.Add([]byte("\x00\x7f{}"))
	f.Add([]byte("\x00\x82\x80\x80\x00{}"))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		m, err := protocol.ParseBinary(msg)
		if fine := fineBinary(msg); fine != (err == nil) {
			t.Fatalf("ParseBinary(%q): %v, want a message: %t", msg, err, fine)
		}
		if err != nil {
			return
		}
		if m.Data == nil {
			t.Fatal("no data")
		}
		if m.Kind == protocol.Response {
			checkResult(t, m)
			return
		}
		for _, d := range decodings {
			got, gotErr := d.binary(m.Params, m.Data)
			if len(m.Params) == 0 || m.Params[0] != '{' {
				if gotErr == nil {
					t.Fatalf("%s was accepted as %T", m.Params, got)
				}
				continue
			}
			same, err := protocol.ParseMessage(asJSON(m, d.member))
			if err != nil { // the JSON has the member already, or one value more than the limit
				continue
			}
			want, wantErr := d.binary(same.Params, nil)
			if (gotErr == nil) != (wantErr == nil) || gotErr == nil && !equal(got, want) {
				t.Fatalf("%q as %T:\nbinary %+v, %v\nJSON   %+v, %v", msg, got, got, gotErr, want, wantErr)
			}
		}
	})
}

// equal compares decoded params. JSON does not distinguish no data from none.
func equal(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return reflect.TypeOf(a) == reflect.TypeOf(b) && bytes.Equal(x, y)
}

// checkResult compares the result of a binary message with that of its JSON.
func checkResult(t *testing.T, m protocol.Message) {
	for _, r := range []struct {
		member string
		make   func() any
	}{
		{"chunk", func() any { return new(protocol.ReadBlockResult) }},
		{"dataBase64", func() any { return new(protocol.ReadFileResult) }},
	} {
		if m.Result[0] != '{' {
			continue
		}
		same, err := protocol.ParseMessage(asJSON(m, r.member))
		if err != nil {
			continue
		}
		got, want := r.make(), r.make()
		gotErr := protocol.DecodeResult(m.Result, m.Data, got)
		wantErr := protocol.DecodeResult(same.Result, nil, want)
		if gotErr == nil && wantErr == nil && !equal(got, want) {
			t.Fatalf("%q: binary %+v, JSON %+v", m.Result, got, want)
		}
	}
}

// fineBinary reports whether a binary message can be parsed.
func fineBinary(msg []byte) bool {
	if len(msg) < 2 || msg[0] != 0 {
		return false
	}
	length, n := binary.Uvarint(msg[1:])
	if n <= 0 || length > uint64(len(msg)-1-n) {
		return false
	}
	m, err := protocol.ParseMessage(msg[1+n : 1+n+int(length)])
	return err == nil && m.Kind != protocol.ErrorResponse
}

// TestBinaryForms encodes what has data in both forms.
func TestBinaryForms(t *testing.T) {
	id, digest := "7", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	data := []byte("a\n\x00\xff\"")
	for _, v := range []any{
		protocol.WriteParams{ProcessID: "p", WriteID: &id, Chunk: data},
		protocol.WriteParams{ProcessID: `"`, Chunk: []byte{}},
		protocol.WriteBlockParams{HandleID: "h", Offset: 1 << 40, Chunk: data},
		protocol.WriteFileParams{Path: protocol.URIPath("/a b"), Data: data, ExpectedSHA256: &digest, FollowSymlinks: true},
		protocol.ReadBlockResult{Chunk: data, EOF: true},
		protocol.ReadFileResult{Data: data},
	} {
		head, raw, ok := protocol.Split(v)
		if !ok {
			t.Errorf("%T has no binary form", v)
			continue
		}
		envelope, err := protocol.AppendRequest(nil, protocol.NumberID(1), "m", head)
		if err != nil {
			t.Fatal(err)
		}
		m, err := protocol.ParseBinary(protocol.AppendBinary(nil, envelope, raw))
		if err != nil {
			t.Errorf("%T: %v", v, err)
			continue
		}
		member := "chunk"
		switch v.(type) {
		case protocol.WriteFileParams, protocol.ReadFileResult:
			member = "dataBase64"
		}
		plain, err := protocol.AppendRequest(nil, protocol.NumberID(1), "m", v)
		if err != nil {
			t.Fatal(err)
		}
		if got := asJSON(m, member); !sameJSON(got, plain) {
			t.Errorf("%T:\nbinary %s\nJSON   %s", v, got, plain)
		}
	}
	c := protocol.Chunk{Seq: 3, Stream: protocol.Stderr, Data: data}
	m, err := protocol.ParseBinary(protocol.AppendBinaryOutput(nil, "p", c))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := asJSON(m, "chunk"), protocol.AppendOutput(nil, "p", c); !bytes.Equal(got, want) {
		t.Errorf("binary %s\nJSON   %s", got, want)
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// TestGuessBinaryID finds the request of a binary message that is cut off.
func TestGuessBinaryID(t *testing.T) {
	head := []byte(`{"id":17,"method":"fs/writeFile","params":{"path":"file:///a"}}`)
	msg := protocol.AppendBinary(nil, head, bytes.Repeat([]byte(`{"id":1}`), 100))
	for _, cut := range []int{len(head) - 5, len(head) + 2, len(msg)} {
		if id, answer := protocol.GuessID(msg[:cut]); id != protocol.NumberID(17) || answer {
			t.Errorf("the first %d bytes: %v, %t", cut, id, answer)
		}
	}
	for _, msg := range []string{"\x00", "\x00\xff", "\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f{\"id\":1"} {
		if id, _ := protocol.GuessID([]byte(msg)); id != protocol.MalformedID {
			t.Errorf("%q: %v", msg, id)
		}
	}
}
