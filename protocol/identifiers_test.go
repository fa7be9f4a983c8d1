package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"execserver/protocol"
)

// TestIdentifiersAreBounded has an identifier of the largest size, and one that
// is larger, wherever a client chooses one.
func TestIdentifiersAreBounded(t *testing.T) {
	type params = map[string]any
	start := params{"processId": "p", "argv": []string{"true"}, "cwd": "file:///", "env": params{}, "tty": false}
	for _, test := range []struct {
		name   string
		decode func(json.RawMessage) (any, error)
		params params // without the identifier
	}{
		{"clientName", decoder(protocol.DecodeParams[protocol.InitializeParams]), nil},
		{"resumeSessionId", decoder(protocol.DecodeParams[protocol.InitializeParams]), params{"clientName": "c"}},
		{"observeSessionId", decoder(protocol.DecodeParams[protocol.InitializeParams]), params{"clientName": "c"}},
		{"processId", decoder(protocol.DecodeParams[protocol.StartParams]), start},
		{"startId", decoder(protocol.DecodeParams[protocol.StartParams]), start},
		{"processId", decoder(protocol.DecodeParams[protocol.ReadParams]), nil},
		{"processId", decoder(protocol.DecodeParams[protocol.WriteParams]), params{"chunk": ""}},
		{"writeId", decoder(protocol.DecodeParams[protocol.WriteParams]), params{"processId": "p", "chunk": ""}},
		{"processId", decoder(protocol.DecodeParams[protocol.SignalParams]), params{"signal": "SIGINT"}},
		{"processId", decoder(protocol.DecodeParams[protocol.TerminateParams]), nil},
		{"processId", decoder(protocol.DecodeParams[protocol.CloseStdinParams]), nil},
		{"processId", decoder(protocol.DecodeParams[protocol.ResizeParams]), params{"size": params{"rows": 1, "cols": 1}}},
		{"processId", decoder(protocol.DecodeParams[protocol.WaitParams]), nil},
		{"processId", decoder(protocol.DecodeParams[protocol.SnapshotParams]), nil},
		{"processId", decoder(protocol.DecodeParams[protocol.AckParams]), params{"seq": 1}},
		{"handleId", decoder(protocol.DecodeParams[protocol.OpenParams]), params{"path": "file:///x"}},
		{"handleId", decoder(protocol.DecodeParams[protocol.ReadBlockParams]), params{"offset": 0, "len": 1}},
		{"handleId", decoder(protocol.DecodeParams[protocol.WriteBlockParams]), params{"offset": 0, "chunk": ""}},
		{"handleId", decoder(protocol.DecodeParams[protocol.CloseParams]), nil},
		{"watchId", decoder(protocol.DecodeParams[protocol.WatchParams]), params{"path": "file:///x"}},
		{"watchId", decoder(protocol.DecodeParams[protocol.UnwatchParams]), nil},
		{"requestId", decoder(protocol.DecodeParams[protocol.HTTPRequest]), params{"method": "GET", "url": "http://x/", "headers": []any{}, "streamResponse": true}},
		{"streamId", decoder(protocol.DecodeParams[protocol.TCPOpenParams]), params{"host": "h", "port": 1, "credit": 0}},
		{"host", decoder(protocol.DecodeParams[protocol.TCPOpenParams]), params{"streamId": "s", "port": 1, "credit": 0}},
		{"streamId", decoder(protocol.DecodeParams[protocol.TCPData]), params{"chunk": ""}},
		{"streamId", decoder(protocol.DecodeParams[protocol.TCPMoreCredit]), params{"bytes": 1}},
		{"streamId", decoder(protocol.DecodeParams[protocol.TCPEnd]), nil},
		{"streamId", decoder(protocol.DecodeParams[protocol.TCPReset]), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, size := range []int{256, 257, 1 << 20} {
				p := params{}
				maps.Copy(p, test.params)
				p[test.name] = strings.Repeat("é", size/2) + strings.Repeat("x", size%2)
				raw, err := json.Marshal(p)
				if err != nil {
					t.Fatal(err)
				}
				want := ""
				if size > 256 {
					want = fmt.Sprintf("invalid params: %s: %d bytes long, the limit is 256 bytes", test.name, size)
				}
				_, err = test.decode(raw)
				if e, ok := errors.AsType[*protocol.Error](err); want == "" && err != nil ||
					want != "" && (!ok || e.Code != protocol.CodeInvalidParams || e.Message != want) {
					t.Errorf("%d bytes: %v, want %q", size, err, want)
				}
			}
		})
	}
}

// TestRequestIDsAreBounded has the id of a request.
func TestRequestIDsAreBounded(t *testing.T) {
	for size, want := range map[int]string{256: "", 257: "id: 257 bytes long, the limit is 256 bytes"} {
		_, err := protocol.ParseMessage(fmt.Appendf(nil, `{"id":%q,"method":"m"}`, strings.Repeat("x", size)))
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && got != want {
			t.Errorf("%d bytes: %v, want %q", size, err, want)
		}
	}
}
