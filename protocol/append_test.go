package protocol_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"execserver/protocol"
)

// same compares a text of ours, byte for byte of meaning, with what
// encoding/json makes of want.
func same(t *testing.T, got []byte, want any) {
	t.Helper()
	wanted, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal(wanted, &b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, a); diff != "" {
		t.Errorf("%s (-want +got):\n%s", got, diff)
	}
	if _, err := protocol.ParseMessage(got); err != nil && !strings.Contains(err.Error(), "a message has") {
		t.Errorf("%s: %v", got, err)
	}
}

type object = map[string]any

// texts are strings that are hard to spell in JSON.
var texts = []string{
	"", "plain", `"quoted" \back/`, "\x00\x1f\x7f\n\r\t\b\f", "ü€😀\u2028\u2029", "<a>&", "a\x01ü\x02", "\ufffd",
}

func TestAppendEnvelopes(t *testing.T) {
	must := func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(b), "kept") {
			t.Fatalf("the buffer was changed: %s", b)
		}
		return b[len("kept"):]
	}
	kept := []byte("kept")
	for _, s := range texts {
		id := protocol.TextID(s)
		same(t, must(protocol.AppendRequest(kept, id, s, nil)), object{"id": s, "method": s})
		same(t, must(protocol.AppendRequest(kept, id, s, object{s: s})), object{"id": s, "method": s, "params": object{s: s}})
		same(t, must(protocol.AppendNotification(kept, s, nil)), object{"method": s})
		same(t, must(protocol.AppendNotification(kept, s, []string{s})), object{"method": s, "params": []string{s}})
		same(t, must(protocol.AppendResponse(kept, id, nil)), object{"id": s, "result": nil})
		same(t, must(protocol.AppendResponse(kept, id, protocol.Empty{})), object{"id": s, "result": object{}})
		same(t, must(protocol.AppendErrorResponse(kept, id, protocol.Errorf(-7, "%s", s)), nil),
			object{"id": s, "error": object{"code": -7, "message": s}})
		failure := &protocol.Error{Code: 1, Message: s, Data: raw(`[1,"x"]`)}
		same(t, must(protocol.AppendErrorResponse(kept, id, failure), nil),
			object{"id": s, "error": object{"code": 1, "message": s, "data": []any{1, "x"}}})
	}
	same(t, must(protocol.AppendRequest(kept, protocol.NumberID(-3), "m", 1)), object{"id": -3, "method": "m", "params": 1})
	if b, err := protocol.AppendResponse(nil, protocol.NumberID(1), func() {}); err == nil {
		t.Errorf("a function was encoded: %s", b)
	}
}

func TestAppendEvents(t *testing.T) {
	big := strings.Repeat("\x00\xffab", 20000)
	for _, s := range append(texts, "not UTF-8: \xff\xfe.", "\x80", "a\xc0b", big) {
		id := strings.Map(func(r rune) rune { return r }, s) // one U+FFFD for each wrong byte
		chunk := protocol.Chunk{Seq: 1<<64 - 1, Stream: protocol.PTY, Data: []byte(s)}
		encoded := base64.StdEncoding.EncodeToString([]byte(s))
		exact := json.Number("18446744073709551615")
		same(t, protocol.AppendOutput(nil, id, chunk), object{
			"method": "process/output", "params": object{"processId": id, "seq": exact, "stream": "pty", "chunk": encoded},
		})
		same(t, chunk.AppendJSON(nil), object{"seq": exact, "stream": "pty", "chunk": encoded})
		same(t, protocol.ReadFileResult{Data: []byte(s)}.AppendJSON(nil), object{"dataBase64": encoded})
		same(t, protocol.AppendExited(nil, id, 3, protocol.ExitRecord{ExitCode: -1, SandboxDenied: true}), object{
			"method": "process/exited", "params": object{"processId": id, "seq": 3, "exitCode": -1, "sandboxDenied": true},
		})
		same(t, protocol.AppendClosed(nil, id, 4), object{"method": "process/closed", "params": object{"processId": id, "seq": 4}})

		m, err := protocol.ParseMessage(protocol.AppendOutput([]byte{}, id, chunk))
		if err != nil {
			t.Fatal(err)
		}
		got, err := protocol.DecodeParams[protocol.Output](m.Params)
		if diff := cmp.Diff(protocol.Output{ProcessID: id, Chunk: chunk}, got); err != nil || diff != "" {
			t.Errorf("output came back: %v\n%s", err, diff)
		}
	}
}

func TestAppendTCP(t *testing.T) {
	for _, s := range append(texts, "not UTF-8: \xff\xfe.") {
		id := strings.Map(func(r rune) rune { return r }, s) // one U+FFFD for each wrong byte
		data := protocol.TCPData{StreamID: id, Chunk: []byte(s)}
		same(t, protocol.AppendTCPData(nil, data), object{
			"method": "tcp/data", "params": object{"streamId": id, "chunk": base64.StdEncoding.EncodeToString([]byte(s))},
		})
		same(t, protocol.AppendTCPCredit(nil, protocol.TCPMoreCredit{StreamID: id, Bytes: 7}), object{
			"method": "tcp/credit", "params": object{"streamId": id, "bytes": 7},
		})
		same(t, protocol.AppendTCPEnd(nil, protocol.TCPEnd{StreamID: id}), object{"method": "tcp/end", "params": object{"streamId": id}})
		same(t, protocol.AppendTCPReset(nil, protocol.TCPReset{StreamID: id, Message: id}), object{
			"method": "tcp/reset", "params": object{"streamId": id, "message": id},
		})
		b, err := protocol.ParseBinary(protocol.AppendBinaryTCPData([]byte{}, data))
		if err != nil {
			t.Fatal(err)
		}
		joined, err := protocol.DecodeBulk[protocol.TCPData](b.Params, b.Data)
		if diff := cmp.Diff(data, joined, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("binary data came back: %v\n%s", err, diff)
		}
		m, err := protocol.ParseMessage(protocol.AppendTCPData([]byte{}, data))
		if err != nil {
			t.Fatal(err)
		}
		got, err := protocol.DecodeParams[protocol.TCPData](m.Params)
		if diff := cmp.Diff(data, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("data came back: %v\n%s", err, diff)
		}
	}
}

func TestAppendHTTP(t *testing.T) {
	for _, s := range append(texts, "not UTF-8: \xff\xfe.") {
		text := strings.Map(func(r rune) rune { return r }, s) // one U+FFFD for each wrong byte
		encoded := base64.StdEncoding.EncodeToString([]byte(s))
		response := protocol.HTTPResponse{Status: 404, Body: []byte(s)}
		same(t, response.AppendJSON(nil), object{"status": 404, "headers": []any{}, "bodyBase64": encoded})
		response.Headers = []protocol.HTTPHeader{{Name: "a", Value: text}, {Name: text, Value: ""}}
		want := object{
			"status": 404, "bodyBase64": encoded,
			"headers": []any{object{"name": "a", "value": text}, object{"name": text, "value": ""}},
		}
		same(t, response.AppendJSON(nil), want)
		var got protocol.HTTPResponse
		if err := json.Unmarshal(response.AppendJSON(nil), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(response, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("the answer came back:\n%s", diff)
		}
		for _, failure := range []*string{nil, &text} {
			delta := protocol.HTTPBodyDelta{RequestID: text, Seq: 7, Data: []byte(s), Done: failure != nil, Error: failure}
			m, err := protocol.ParseMessage(protocol.AppendHTTPBodyDelta(nil, delta))
			if err != nil || m.Method != protocol.NotificationHTTPBodyDelta {
				t.Fatal(m, err)
			}
			same(t, m.Params, object{"requestId": text, "seq": 7, "deltaBase64": encoded, "done": failure != nil, "error": failure})
			got, err := protocol.DecodeParams[protocol.HTTPBodyDelta](m.Params)
			if diff := cmp.Diff(delta, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("a piece came back: %v\n%s", err, diff)
			}
		}
	}
	big := protocol.HTTPResponse{Status: 200, Body: make([]byte, 1000)}
	for range 100 {
		big.Headers = append(big.Headers, protocol.HTTPHeader{Name: "name", Value: "value"})
	}
	if room, size := big.EncodedLen(), len(big.AppendJSON(nil)); room < size || room > size+size/10 {
		t.Errorf("EncodedLen = %d, the answer has %d bytes", room, size)
	}
}

// The notification has the same members as the record has by itself.
func TestAppendExitRecord(t *testing.T) {
	for _, r := range []protocol.ExitRecord{
		{},
		{ExitCode: 3, EndedBy: protocol.EndedBySelf, Rusage: &protocol.Rusage{}},
		{ExitCode: 137, Signal: "SIGKILL", EndedBy: protocol.EndedByTimeout, OOMKilled: true, Rusage: &protocol.Rusage{UserMs: 5, MaxRSSBytes: 1 << 40}},
		{ExitCode: 134, Signal: "SIGABRT", CoreDumped: true, EndedBy: protocol.EndedBySelf, Rusage: &protocol.Rusage{SystemMs: 9}},
	} {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var params object
		if err := json.Unmarshal(text, &params); err != nil {
			t.Fatal(err)
		}
		params["processId"], params["seq"], params["sandboxDenied"] = "p", 7, false
		same(t, protocol.AppendExited(nil, "p", 7, r), object{"method": "process/exited", "params": params})
	}
}

func TestAppendReadResult(t *testing.T) {
	failure := "a \"b\""
	killed := &protocol.ExitRecord{
		ExitCode: 139, Signal: "SIGSEGV", CoreDumped: true, EndedBy: protocol.EndedBySelf, OOMKilled: true,
		Rusage: &protocol.Rusage{UserMs: 1, SystemMs: 2, MaxRSSBytes: 3},
	}
	chunks := []protocol.Chunk{{1, "stdout", []byte("x")}, {2, "stderr", nil}}
	listed := []object{{"seq": 1, "stream": "stdout", "chunk": "eA=="}, {"seq": 2, "stream": "stderr", "chunk": ""}}
	for _, test := range []struct {
		in   protocol.ReadResult
		want object
	}{
		{protocol.ReadResult{}, object{
			"chunks": []any{}, "nextSeq": 0, "exited": false, "exitCode": nil, "closed": false, "failure": nil, "sandboxDenied": false,
		}},
		{protocol.ReadResult{Chunks: chunks, NextSeq: 3, Exit: &protocol.ExitRecord{ExitCode: -2, SandboxDenied: true}, Closed: true, Failure: &failure}, object{
			"chunks": listed, "nextSeq": 3, "exited": true, "exitCode": -2, "closed": true, "failure": failure, "sandboxDenied": true,
		}},
		{protocol.ReadResult{Exit: killed}, object{
			"chunks": []any{}, "nextSeq": 0, "exited": true, "exitCode": 139, "closed": false, "failure": nil, "sandboxDenied": false,
			"signal": "SIGSEGV", "coreDumped": true, "endedBy": "self", "oomKilled": true,
			"rusage": object{"userMs": 1, "systemMs": 2, "maxRssBytes": 3},
		}},
		// What was evicted is told only when there is something to tell.
		{protocol.ReadResult{FirstSeq: 9}, object{
			"chunks": []any{}, "nextSeq": 0, "exited": false, "exitCode": nil, "closed": false, "failure": nil, "sandboxDenied": false,
		}},
		{protocol.ReadResult{FirstSeq: 9, DroppedBytes: 7}, object{
			"chunks": []any{}, "nextSeq": 0, "exited": false, "exitCode": nil, "closed": false, "failure": nil, "sandboxDenied": false,
			"firstSeq": 9, "droppedBytes": 7,
		}},
	} {
		same(t, test.in.AppendJSON(nil), test.want)
		response, err := protocol.AppendResponse(nil, protocol.NumberID(1), &test.in)
		if err != nil {
			t.Fatal(err)
		}
		same(t, response, object{"id": 1, "result": test.want})
		if room := test.in.EncodedLen(); room < len(response) {
			t.Errorf("EncodedLen = %d, the answer has %d bytes", room, len(response))
		}
	}
}

// TestRoundTrips decodes what encoding/json makes of params.
func TestRoundTrips(t *testing.T) {
	s, n := "x", uint64(1<<64-1)
	for _, test := range []struct {
		name string
		in   any
	}{
		{"InitializeParams", protocol.InitializeParams{ClientName: "c", ResumeSessionID: &s}},
		{"ReadParams", protocol.ReadParams{ProcessID: "p", AfterSeq: &n, MaxBytes: &n, WaitMs: &n}},
		{"InitializeParams", protocol.InitializeParams{ClientName: "c", ObserveSessionID: &s, Capabilities: protocol.ClientCapabilities{ProcessAck: true, ProcessEvents: true}}},
		{"SignalParams", protocol.SignalParams{ProcessID: "p", Signal: protocol.SignalInterrupt}},
		{"SignalParams", protocol.SignalParams{ProcessID: "p", Signal: "SIGUSR1", ToForeground: true}},
		{"TerminateParams", protocol.TerminateParams{ProcessID: "p"}},
		{"TerminateParams", protocol.TerminateParams{ProcessID: "p", Mode: protocol.TerminateGraceful, TimeoutMs: new(uint64(5))}},
		{"ResizeParams", protocol.ResizeParams{ProcessID: "p", Size: protocol.TerminalSize{Rows: 1, Cols: 2}}},
		{"AckParams", protocol.AckParams{ProcessID: "p", Seq: n}},
		{"WaitParams", protocol.WaitParams{ProcessID: "p", WaitMs: &n}},
		{"SnapshotParams", protocol.SnapshotParams{ProcessID: "p", MaxBytes: &n}},
		{"FsParams", protocol.FileParams{Path: protocol.OSPath("/a b"), FollowSymlinks: true}},
		{"ExecParams", protocol.StartParams{ProcessID: "p", Argv: []string{"a"}, Cwd: protocol.URIPath("/x"), Env: map[string]string{"A": "ü"}, TTY: true, Arg0: &s}},
		{"ExecParams", protocol.StartParams{
			ProcessID: "p", Argv: []string{"a"}, Cwd: protocol.URIPath("/x"), Env: map[string]string{},
			StartLimits: protocol.StartLimits{TimeoutMs: &n, MaxOutputBytes: &n, MemoryBytes: &n, Pids: &n, CPUs: new(0.25)},
		}},
		{"ExecParams", protocol.StartParams{
			Form: protocol.StartDirect, ProcessID: "p", Argv: []string{"a"}, Cwd: protocol.URIPath("/x"), Env: map[string]string{},
			StartLimits: protocol.StartLimits{TimeoutMs: &n, CPUs: new(2.0)},
		}},
	} {
		got, err := decoders[test.name](raw(text(t, test.in)))
		if diff := cmp.Diff(test.in, got, cmp.AllowUnexported(protocol.Path{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", test.name, err, diff)
		}
	}
}

func TestErrors(t *testing.T) {
	sentinels := []*protocol.Error{
		protocol.ErrInvalidRequest, protocol.ErrMethodNotFound, protocol.ErrInvalidParams, protocol.ErrInternal,
		protocol.ErrTransportClosed, protocol.ErrNotFound, protocol.ErrFileChanged, protocol.ErrSessionAttached,
	}
	for i, sentinel := range sentinels {
		// The same answer in-process and for what came over the wire.
		wire := protocol.AppendErrorResponse(nil, protocol.NumberID(1), protocol.Errorf(sentinel.Code, "detail"))
		m, err := protocol.ParseMessage(wire)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{sentinel, protocol.Errorf(sentinel.Code, "detail"), fmt.Errorf("call: %w", m.Error)} {
			for j, other := range sentinels {
				if errors.Is(err, other) != (i == j) {
					t.Errorf("errors.Is(%d, %d) = %v", sentinel.Code, other.Code, i != j)
				}
			}
			if got := protocol.AsError(fmt.Errorf("outer: %w", err)); got.Code != sentinel.Code {
				t.Errorf("AsError changed the code %d to %d", sentinel.Code, got.Code)
			}
		}
	}
	if errors.Is(protocol.ErrInternal, io.EOF) || errors.Is(io.EOF, protocol.ErrInternal) {
		t.Error("a foreign error is one of ours")
	}
	if got := protocol.AsError(io.ErrUnexpectedEOF); got.Code != protocol.CodeInternal || got.Message != "unexpected EOF" {
		t.Errorf("a foreign error on the wire: %+v", got)
	}
}

// FuzzAppendString holds our strings against what encoding/json reads in them.
func FuzzAppendString(f *testing.F) {
	for _, s := range texts {
		f.Add(s)
	}
	f.Add("\xff\xed\xa0\x80a")
	f.Add("\x80")
	f.Fuzz(func(t *testing.T, s string) {
		text, err := protocol.AppendNotification(nil, s, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Method string }
		want := strings.Map(func(r rune) rune { return r }, s) // one U+FFFD for each wrong byte
		if err := json.Unmarshal(text, &got); err != nil || got.Method != want {
			t.Fatalf("%q spelled %s reads %q, %v", s, text, got.Method, err)
		}
		m, err := protocol.ParseMessage(text)
		if err != nil || m.Method != want {
			t.Fatalf("%s parsed as %q, %v", text, m.Method, err)
		}
		if bytes := protocol.AppendErrorResponse(nil, protocol.TextID(s), protocol.Errorf(1, "%s", s)); !json.Valid(bytes) {
			t.Fatalf("invalid JSON: %s", bytes)
		}
	})
}

func TestAppendReadBackgroundResult(t *testing.T) {
	for _, r := range []*protocol.ReadBackgroundResult{
		{NextSeq: 1},
		{NextSeq: 1, Closed: true},
		{Chunks: []protocol.Chunk{{Seq: 7, Stream: protocol.Stderr, Data: []byte("a\x00")}}, NextSeq: 8, FirstSeq: 7, DroppedBytes: 5},
	} {
		text := r.AppendJSON(nil)
		if n := r.EncodedLen(); n < len(text) {
			t.Errorf("the length of %s is told as %d", text, n)
		}
		var again protocol.ReadBackgroundResult
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(*r, again, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}
