//go:build unix

package server_test

import (
	"bufio"
	"log/slog"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/server"
)

// TestErrorsAreShort sends long texts in every place from which an error or the log quotes
// them. What an observer of the session is sent is short, too.
func TestErrorsAreShort(t *testing.T) {
	var log testkit.Buffer
	srv := server.New(&server.Options{Auth: server.Unauthenticated, Log: slog.New(slog.NewTextHandler(&log, nil))})
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	where := listenWebSocket(t, srv)
	c := newCaller(t, where, "")
	long := strings.Repeat("ü", 500_000)
	start := func(program string, more params) params {
		p := params{"processId": "p", "argv": []string{program}, "cwd": "/", "env": params{}, "tty": false}
		for name, value := range more {
			p[name] = value
		}
		return p
	}
	for _, row := range []struct {
		method string
		p      params
		end    string // of the error
	}{
		{"no/such/" + long, nil, "` yet"},
		{"process/start", start(long, nil), "(os error 36)"},
		{"process/start", start("/"+long[:4000], nil), "(os error 36)"},
		{"process/start", start("true", params{"argv": []string{"true", long}}), "(os error 7)"},
		{"process/start", start("true", params{"env": params{long: "1"}}), "(os error 7)"},
		{"process/start", start("nope", params{"env": params{"PATH": "/" + long[:100_000]}}), "(os error 2)"},
		{"process/start", start("true", params{"cwd": "/" + long}), "(os error 36)"},
		{"process/start", start("true", params{"cwd": "/" + long[:4000]}), "(os error 36)"},
		{"fs/readFile", params{"path": "/" + long}, "(os error 36)"},
		{"fs/readFile", params{"path": long}, "file: URI"},
		{"fs/walk", params{"path": "/" + long[:4000]}, ""},
		{"http/request", params{"method": "GET", "url": "http://" + long, "requestId": "r"}, ""},
		{"tcp/open", params{"streamId": "s", "path": "/" + long, "credit": 1}, ""},
		{"process/signal", params{"processId": "p", "signal": long}, ""},
	} {
		r := c.call(row.method, row.p)
		if r.Error == nil || len(r.Error.Message) > 1100 || !strings.HasSuffix(r.Error.Message, row.end) {
			t.Errorf("%.20s: %d bytes, %.2000v", row.method, len(r.Error.Message), r.Error)
		}
	}
	if err := c.Notify("no/such/"+long, nil); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	testkit.Shutdown(t, srv)
	lines := bufio.NewScanner(strings.NewReader(log.String()))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if len(lines.Bytes()) > 8<<10 {
			t.Errorf("a line of %d bytes in the log: %.200s", len(lines.Bytes()), lines.Text())
		}
	}
}
