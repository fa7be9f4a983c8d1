package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
	"execserver/server"
	"execserver/transport"
)

type fileParams = map[string]any

// newFileServer makes a server, and checks in the end that it goes away.
func newFileServer(t testing.TB, opts *server.Options) *server.Server {
	t.Helper()
	srv := server.New(opts)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	return srv
}

// fileClient is a client with one connection in memory.
type fileClient struct {
	t testing.TB
	*testclient.Conn
	served  chan error // what ServeConn returned
	session string

	mu      sync.Mutex
	notes   []protocol.Message // notifications, from the first on
	changed chan struct{}      // closed when there is another one
}

// answer is an answer of the server.
type answer = testclient.Answer

// connectFiles makes a peer that has shaken hands.
func connectFiles(t testing.TB, srv *server.Server) *fileClient {
	t.Helper()
	return resumeFiles(t, srv, nil)
}

// resumeFiles makes a peer that goes on with a session, unless that is nil.
func resumeFiles(t testing.TB, srv *server.Server, session *string) *fileClient {
	t.Helper()
	near, far := transport.Pipe(0)
	return connectOver(t, srv, near, far, session)
}

// connectOver is resumeFiles over a given connection.
func connectOver(t testing.TB, srv *server.Server, near, far transport.Conn, session *string) *fileClient {
	t.Helper()
	p := &fileClient{t: t, served: make(chan error, 1), changed: make(chan struct{})}
	go func() { p.served <- srv.ServeConn(far) }()
	p.Conn = testclient.New(memoryPeer{near}, p.notify)
	t.Cleanup(func() {
		p.close()
		<-p.Done()
	})
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	params := fileParams{"clientName": "test", "resumeSessionId": session}
	err := p.Handshake(ctx, params)
	for errors.Is(err, protocol.ErrSessionAttached) && ctx.Err() == nil {
		err = p.Handshake(ctx, params)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.session = p.SessionID
	return p
}

func (p *fileClient) close() { p.Link.Drop() }

func (p *fileClient) notify(method string, params json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, protocol.Message{Kind: protocol.Notification, Method: method, Params: params})
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits until see, which is called with each notification from the first
// on, returns true.
func (p *fileClient) await(what string, see func(protocol.Message) bool) {
	p.t.Helper()
	timeout := time.NewTimer(testkit.Patience)
	defer timeout.Stop()
	for i := 0; ; i++ {
		p.mu.Lock()
		for len(p.notes) == i {
			changed := p.changed
			p.mu.Unlock()
			select {
			case <-changed:
			case <-timeout.C:
				p.t.Fatalf("waited too long for %s", what)
			}
			p.mu.Lock()
		}
		n := p.notes[i]
		p.mu.Unlock()
		if see(n) {
			return
		}
	}
}

// send sends a request, whose answer arrives later.
func (p *fileClient) send(method string, params any) <-chan answer {
	p.t.Helper()
	arrives, err := p.Begin(method, params)
	if err != nil {
		p.t.Fatal(err)
	}
	return arrives
}

// take waits for an answer and decodes it into result, unless that is nil.
func (p *fileClient) take(arrives <-chan answer, result any) error {
	select {
	case a, ok := <-arrives:
		if !ok {
			return p.Err()
		}
		return a.Decode(result)
	case <-time.After(testkit.Patience):
		return errors.New("no answer")
	}
}

func (p *fileClient) try(method string, params, result any) error {
	p.t.Helper()
	return p.take(p.send(method, params), result)
}

// call calls a method that must succeed.
func (p *fileClient) call(method string, params, result any) {
	p.t.Helper()
	if err := p.try(method, params, result); err != nil {
		p.t.Fatalf("%s %.200s: %v", method, fmt.Sprint(params), err)
	}
}

// refused calls a method that must fail.
func (p *fileClient) refused(method string, params any, code protocol.Code, text string) {
	p.t.Helper()
	err := p.try(method, params, nil)
	if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != code || e.Message != text {
		p.t.Errorf("%s %.200s: %v, want %d %q", method, fmt.Sprint(params), err, code, text)
	}
}

func putFile(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func contentOf(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
