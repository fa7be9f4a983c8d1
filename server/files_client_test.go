package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
	"execserver/transport"
)

// filesTimeout is how long a test waits for what should happen at once.
const filesTimeout = time.Minute

type fileParams = map[string]any

// newFileServer makes a server, and checks in the end that it goes away.
func newFileServer(t testing.TB, opts *server.Options) *server.Server {
	t.Helper()
	srv := server.New(opts)
	t.Cleanup(func() { testkit.Shutdown(t, srv, filesTimeout) })
	return srv
}

// fileClient is a client with one connection in memory.
type fileClient struct {
	t       testing.TB
	conn    transport.Conn
	served  chan error // what ServeConn returned
	session string

	mu      sync.Mutex
	next    int64
	waiting map[protocol.ID]chan answer
	notes   []protocol.Message // notifications, from the first on
	changed chan struct{}      // closed when there is another one

	reading sync.Mutex // held while nothing is to be read
	writing sync.Mutex // held while a request is written
}

// answer is an answer of the server, and how many notifications came before it.
type answer struct {
	protocol.Message
	notes int
}

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
	p := &fileClient{
		t: t, conn: near, served: make(chan error, 1),
		waiting: make(map[protocol.ID]chan answer), changed: make(chan struct{}),
	}
	go func() { p.served <- srv.ServeConn(far) }()
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read()
	}()
	t.Cleanup(func() {
		p.close()
		<-read
	})
	var result protocol.InitializeResult
	params := fileParams{"clientName": "test", "resumeSessionId": session}
	err := p.try("initialize", params, &result)
	for deadline := time.Now().Add(filesTimeout); errors.Is(err, protocol.ErrSessionAttached) && time.Now().Before(deadline); {
		err = p.try("initialize", params, &result)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.session = result.SessionID
	if err := p.conn.Write([]byte(`{"method":"initialized"}`)); err != nil {
		t.Fatal(err)
	}
	return p
}

// pause keeps the client from reading more than one message.
func (p *fileClient) pause()   { p.reading.Lock() }
func (p *fileClient) unpause() { p.reading.Unlock() }

func (p *fileClient) close() { _ = p.conn.Close(transport.Reason{}) }

// read takes what the server sends until the end.
func (p *fileClient) read() {
	for {
		text, err := p.conn.Read(nil)
		if err != nil {
			return
		}
		if !p.arrived(text) {
			return
		}
	}
}

func (p *fileClient) arrived(text []byte) bool {
	p.reading.Lock()
	defer p.reading.Unlock()
	m, err := protocol.ParseMessage(text)
	if err != nil {
		p.t.Errorf("the server sent %.200s: %v", text, err)
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Kind == protocol.Notification {
		p.notes = append(p.notes, m)
		close(p.changed)
		p.changed = make(chan struct{})
	} else if arrives := p.waiting[m.ID]; arrives != nil {
		delete(p.waiting, m.ID)
		arrives <- answer{m, len(p.notes)}
	} else {
		p.t.Errorf("the server sent %.200s", text)
	}
	return true
}

// await waits until see, which is called with each notification from the first
// on, returns true.
func (p *fileClient) await(what string, see func(protocol.Message) bool) {
	p.t.Helper()
	timeout := time.NewTimer(filesTimeout)
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
	arrives := make(chan answer, 1)
	p.mu.Lock()
	p.next++
	id := protocol.NumberID(p.next)
	p.waiting[id] = arrives
	p.mu.Unlock()
	text, err := protocol.AppendRequest(nil, id, method, params)
	if err == nil {
		p.writing.Lock()
		err = p.conn.Write(text)
		p.writing.Unlock()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return arrives
}

// take waits for an answer and decodes it into result, unless that is nil.
func (p *fileClient) take(arrives <-chan answer, result any) error {
	select {
	case m := <-arrives:
		if m.Error != nil {
			return m.Error
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(m.Result, result)
	case <-time.After(filesTimeout):
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
