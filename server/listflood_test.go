//go:build unix

package server_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/protocol"
)

// TestListFlood asks for many lists of processes, and reads none. Each one searches the
// system's processes, so only some may do it at the same time.
func TestListFlood(t *testing.T) {
	const processes, requests, most = 100, 1500, 1000
	srv := serveWebSocket(t, nil)
	c, other := newCaller(t, srv, ""), newCaller(t, srv, "")
	for i := range processes {
		c.result(protocol.MethodStart, params{
			"processId": fmt.Sprint(i), "argv": []string{"/bin/true", strings.Repeat("x", 1000)},
			"cwd": "/", "env": params{}, "tty": false, "arg0": nil,
		}, new(struct{}))
	}
	before := runtime.NumGoroutine()
	c.Pause()
	defer c.Unpause()
	for range requests {
		c.send(protocol.MethodList, protocol.ListParams{All: true})
	}
	c.send(protocol.MethodKeep, params{"name": "read-everything", "keepMs": 0})
	testkit.WaitFor(t, testkit.Patience, func() error {
		if now := runtime.NumGoroutine() - before; now > most {
			t.Fatalf("%d goroutines for %d requests", now, requests)
		}
		var list protocol.SessionsResult
		other.result(protocol.MethodSessions, nil, &list)
		for _, s := range list.Sessions {
			if s.Name == "read-everything" {
				return nil
			}
		}
		return errors.New("the server has not read all requests")
	})
}
