//go:build unix

package server_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/server"
	"execserver/transport"
)

// requestsForDirectories are requests of one client, the last line unterminated,
// that make directories each in the one before.
func requestsForDirectories(dir string, count int) string {
	var b strings.Builder
	b.WriteString(`{"id":0,"method":"initialize","params":{"clientName":"printf"}}` + "\n" + `{"method":"initialized"}`)
	for id := 1; id <= count; id++ {
		dir = filepath.Join(dir, "d")
		fmt.Fprintf(&b, "\n"+`{"id":%d,"method":"fs/createDirectory","params":{"path":%q,"recursive":false}}`, id, dir)
	}
	return b.String()
}

// TestRequestsPipedIn writes requests at once and ends its direction. Every
// request is answered.
func TestRequestsPipedIn(t *testing.T) {
	const count = 50
	for name, connect := range map[string]func(*testing.T) (io.ReadWriteCloser, func() error){"unix socket": unixPair, "stdio": stdioPair} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			conn, closeWrite := connect(t)
			if _, err := io.WriteString(conn, requestsForDirectories(dir, count)); err != nil {
				t.Fatal(err)
			}
			if err := closeWrite(); err != nil {
				t.Fatal(err)
			}
			answered := map[int]bool{}
			stop := time.AfterFunc(testkit.Patience, func() { _ = conn.Close() })
			defer stop.Stop()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				var r struct {
					ID    int
					Error json.RawMessage
				}
				if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Error != nil {
					t.Errorf("%s: %v", lines.Bytes(), err)
				}
				answered[r.ID] = true
			}
			if len(answered) != count+1 {
				t.Errorf("%d of %d requests were answered", len(answered), count+1)
			}
		})
	}
}

// TestRequestsOfClientThatLeaves closes both directions at once. What it asked
// for is done.
func TestRequestsOfClientThatLeaves(t *testing.T) {
	const count = 50
	dir := t.TempDir()
	conn, _ := unixPair(t)
	if _, err := io.WriteString(conn, requestsForDirectories(dir, count)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	testkit.WaitFor(t, testkit.Patience, func() error {
		_, err := os.Stat(dir + strings.Repeat("/d", count))
		return err
	})
}

// unixPair connects to a server over a unix socket. closeWrite ends only the
// client's direction.
func unixPair(t *testing.T) (conn io.ReadWriteCloser, closeWrite func() error) {
	t.Helper()
	srv := server.New(nil)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	socket, err := net.Dial("unix", listenUnix(t, srv).(unixServer).path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return socket, socket.(*net.UnixConn).CloseWrite
}

// stdioPair connects to a server over two pipes.
func stdioPair(t *testing.T) (conn io.ReadWriteCloser, closeWrite func() error) {
	t.Helper()
	in, ourOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourIn, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	srv := server.New(nil)
	served := make(chan struct{})
	go func() {
		defer close(served)
		end := func() error { return errors.Join(in.Close(), out.Close()) }
		_ = srv.ServeOnly(transport.NewLines("stdio", in, out, end, 0))
	}()
	pipes := twoPipes{ourIn, ourOut}
	t.Cleanup(func() {
		_ = pipes.Close()
		<-served
	})
	return pipes, ourOut.Close
}

// twoPipes is what a client of stdio has.
type twoPipes struct {
	r, w *os.File
}

func (p twoPipes) Read(b []byte) (int, error)  { return p.r.Read(b) }
func (p twoPipes) Write(b []byte) (int, error) { return p.w.Write(b) }

func (p twoPipes) Close() error { return errors.Join(p.r.Close(), p.w.Close()) }
