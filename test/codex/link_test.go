//go:build unix

package codex

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"execserver/internal/responses"
	"execserver/internal/testkit"
)

// resumes picks clients that come back. Those up to 0.141 give up a command whose connection
// breaks, and a pipe does not break.
func resumes(c client) bool { return c.version != oldest && !c.stdio }

func TestLink(t *testing.T) {
	play(t, []scenario{
		{
			// What the command writes while nobody is connected is there afterwards.
			name:   "broken connection",
			only:   resumes,
			linked: true,
			model: responses.Script(responses.Say(shell("late",
				`echo one; touch up; "$HELPER" await go; echo two; touch written; exit 5`))),
			meanwhile: func(t *testing.T, r *run) {
				r.await(t, "up")
				r.link.cut(t)
				r.write(t, "work/go", "")
				r.await(t, "written")
				r.link.mend()
				r.waitClient(t)
			},
			check: wants("late", 5, "one\ntwo\n"),
		},
		{
			// The command goes on after the client came back, in both directions.
			name:   "broken connection, tty",
			only:   resumes,
			linked: true,
			model: responses.Script(
				responses.Say(shellWith("ask", `touch up; read word; echo "<$word>"`, object{"tty": true, "yield_time_ms": 2000})),
				typeInto("ask", "answer", "Ada\n", 10000),
			),
			meanwhile: func(t *testing.T, r *run) {
				r.await(t, "up")
				r.link.cut(t)
				r.link.mend()
				r.waitClient(t)
			},
			check: func(t *testing.T, r *run) { r.want(t, "answer", 0, "Ada\r\n<Ada>\r\n") },
		},
	})
}

// A link stands between client and server. It can be cut, and is mended later: connections
// that come meanwhile have to wait.
type link struct {
	listener net.Listener
	target   string // host and port of the server
	path     string // of its URL
	wg       sync.WaitGroup

	mu    sync.Mutex
	isCut bool
	whole *sync.Cond        // no longer cut, or closed
	conns map[net.Conn]bool // nil once closed
}

func newLink(t testing.TB, url string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target, path, _ := strings.Cut(strings.TrimPrefix(url, "ws://"), "/")
	l := &link{listener: listener, target: target, path: "/" + path, conns: map[net.Conn]bool{}}
	l.whole = sync.NewCond(&l.mu)
	l.wg.Go(l.accept)
	return l
}

func (l *link) url() string { return "ws://" + l.listener.Addr().String() + l.path }

func (l *link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.wg.Go(func() { l.join(near) })
	}
}

// join connects near with the server until one of them ends.
func (l *link) join(near net.Conn) {
	defer near.Close()
	l.mu.Lock()
	for l.isCut && l.conns != nil {
		l.whole.Wait()
	}
	l.mu.Unlock()
	far, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer far.Close()
	if !l.add(near, far) {
		return
	}
	defer l.remove(near, far)
	l.wg.Go(func() {
		_, _ = io.Copy(near, far)
		near.Close()
	})
	_, _ = io.Copy(far, near)
}

func (l *link) add(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		if l.conns == nil || l.isCut {
			return false
		}
		l.conns[conn] = true
	}
	return true
}

func (l *link) remove(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		delete(l.conns, conn)
	}
}

// cut breaks all connections, of which there must be some.
func (l *link) cut(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) == 0 {
		t.Error("the client does not use the link")
	}
	l.isCut = true
	for conn := range l.conns {
		conn.Close()
	}
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = false
	l.whole.Broadcast()
}

func (l *link) close() {
	l.listener.Close()
	l.mu.Lock()
	for conn := range l.conns {
		conn.Close()
	}
	l.conns = nil
	l.whole.Broadcast()
	l.mu.Unlock()
	l.wg.Wait()
}

// await waits for a file in the work folder, which a command makes.
func (r *run) await(t *testing.T, name string) {
	t.Helper()
	waitFor(t, testkit.Patience, func() error {
		_, err := os.Stat(filepath.Join(r.work, name))
		return err
	})
}
