package server_test

import (
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/server"
)

// TestSystemRefusalsOnUnixSocket has two users connect who may not, one of them many times:
// the log names each once.
func TestSystemRefusalsOnUnixSocket(t *testing.T) {
	testkit.System(t, testkit.Root)
	var log testkit.Buffer
	srv := server.New(&server.Options{Log: testLog(&log)})
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	path := listenUnix(t, srv).(unixServer).path
	for i := range 21 {
		uid := 61234
		if i == 20 {
			uid++
		}
		asUser(uid, func() {
			conn, err := transcript.DialUnix(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Drop()
			if err := conn.Send(0, []byte("{}")); err != nil {
				t.Error(err)
			}
			if text, err := conn.Receive(); err != nil || !strings.Contains(string(text), "may not connect") {
				t.Errorf("got %q, %v", text, err)
			}
		})
	}
	for text, want := range map[string]int{`msg="connection refused"`: 2, "the user 61234": 1, "the user 61235": 1} {
		if n := strings.Count(log.String(), text); n != want {
			t.Errorf("%q is %d times in the log, want %d:\n%s", text, n, want, log.String())
		}
	}
}
