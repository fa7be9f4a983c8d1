//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"execserver/internal/testkit"
)

// fakeRequest is a request to a server that is not ours.
type fakeRequest struct {
	ID     json.RawMessage
	Method string
	Params struct {
		WatchID          string
		ObserveSessionID *string
	}
}

// fakeServer listens where its url says. answer returns what it sends after a request, and
// whether it closes the connection then.
func fakeServer(t *testing.T, answer func(fakeRequest) (messages []object, last bool)) (url string) {
	path := filepath.Join(testkit.SocketDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					var m fakeRequest
					if json.Unmarshal(lines.Bytes(), &m) != nil || m.ID == nil {
						continue
					}
					messages, last := answer(m)
					for _, message := range messages {
						text, _ := json.Marshal(message)
						_, _ = fmt.Fprintf(conn, "%s\n", text)
					}
					if last {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return "unix://" + path
}
