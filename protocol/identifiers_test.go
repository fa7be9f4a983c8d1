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
		{"clientName", decoder(protocol.DecodeInitialize), nil},
		{"resumeSessionId", decoder(protocol.DecodeInitialize), params{"clientName": "c"}},
		{"observeSessionId", decoder(protocol.DecodeInitialize), params{"clientName": "c"}},
		{"processId", decoder(protocol.DecodeStart), start},
		{"startId", decoder(protocol.DecodeStart), start},
		{"processId", decoder(protocol.DecodeRead), nil},
		{"processId", decoder(protocol.DecodeWrite), params{"chunk": ""}},
		{"writeId", decoder(protocol.DecodeWrite), params{"processId": "p", "chunk": ""}},
		{"processId", decoder(protocol.DecodeSignal), params{"signal": "SIGINT"}},
		{"processId", decoder(protocol.DecodeTerminate), nil},
		{"processId", decoder(protocol.DecodeCloseStdin), nil},
		{"processId", decoder(protocol.DecodeResize), params{"size": params{"rows": 1, "cols": 1}}},
		{"processId", decoder(protocol.DecodeWait), nil},
		{"processId", decoder(protocol.DecodeSnapshot), nil},
		{"processId", decoder(protocol.DecodeAck), params{"seq": 1}},
		{"handleId", decoder(protocol.DecodeOpen), params{"path": "file:///x"}},
		{"handleId", decoder(protocol.DecodeReadBlock), params{"offset": 0, "len": 1}},
		{"handleId", decoder(protocol.DecodeWriteBlock), params{"offset": 0, "chunk": ""}},
		{"handleId", decoder(protocol.DecodeClose), nil},
		{"watchId", decoder(protocol.DecodeWatch), params{"path": "file:///x"}},
		{"watchId", decoder(protocol.DecodeUnwatch), nil},
		{"requestId", decoder(protocol.DecodeHTTPRequest), params{"method": "GET", "url": "http://x/", "headers": []any{}, "streamResponse": true}},
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
					want = fmt.Sprintf("%s is %d bytes long, the limit is 256 bytes", test.name, size)
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
	for size, want := range map[int]string{256: "", 257: "id is 257 bytes long, the limit is 256 bytes"} {
		_, err := protocol.ParseMessage(fmt.Appendf(nil, `{"id":%q,"method":"m"}`, strings.Repeat("x", size)))
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && got != want {
			t.Errorf("%d bytes: %v, want %q", size, err, want)
		}
	}
}
