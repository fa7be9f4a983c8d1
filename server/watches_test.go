//go:build unix

package server_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/protocol"
)

// changed decodes a notification of changes; ok is false for another one.
func changed(t *testing.T, m protocol.Message, id string) (c struct {
	WatchID string
	Events  []struct {
		Cursor    uint64
		Kind      string
		Path      string
		Unwatched []string
	}
}, ok bool,
) {
	t.Helper()
	if m.Method != protocol.NotificationChanged {
		return c, false
	}
	if err := json.Unmarshal(m.Params, &c); err != nil {
		t.Fatal(err)
	}
	return c, c.WatchID == id
}

// TestWatchLosesNothingSilently makes many files while their directory is
// watched, by a client that reads and by one that does not read at first. Every
// one is told, or that some were not.
func TestWatchLosesNothingSilently(t *testing.T) {
	for _, idle := range []bool{false, true} {
		count := 2_000
		if idle {
			count = 24_000 // more than is remembered, and in the messages on their way
		}
		t.Run(fmt.Sprint("idle ", idle), func(t *testing.T) {
			p := connectFiles(t, newFileServer(t, nil))
			dir := deepDir(t)
			p.call("fs/watch", fileParams{"watchId": "w", "path": dir}, nil)
			if idle {
				p.Pause()
			}
			missing := make(map[string]bool)
			for i := range count {
				path := fmt.Sprint(dir, "/", i)
				missing[path] = true
				f, err := os.Create(path)
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			if idle {
				p.Unpause()
			}
			var cursor uint64
			overflows := 0
			putFile(t, dir+"/last", "")
			p.await("all files", func(m protocol.Message) bool {
				c, ok := changed(t, m, "w")
				if !ok {
					return false
				}
				for _, e := range c.Events {
					switch {
					case e.Kind == "overflow":
						overflows++
						if len(e.Unwatched) != 1 || e.Unwatched[0] != dir || e.Cursor < cursor {
							t.Errorf("overflow %+v after %d", e, cursor)
						}
						clear(missing)
						putFile(t, dir+"/last", fmt.Sprint(overflows)) // it may be among what was lost
					case e.Cursor != cursor+1:
						t.Errorf("event %d follows event %d", e.Cursor, cursor)
					}
					cursor = e.Cursor
					delete(missing, e.Path)
					if e.Path == dir+"/last" {
						return true
					}
				}
				return false
			})
			if len(missing) > 0 {
				t.Errorf("%d files were not told", len(missing))
			}
			if idle && overflows == 0 {
				t.Error("everything was kept for a client that does not read")
			}
		})
	}
}

// deepDir is a directory whose path is so long that few events fill what waits
// for a client.
func deepDir(t *testing.T) string {
	t.Helper()
	dir := testkit.MemoryDir(t) + strings.Repeat("/"+strings.Repeat("x", 200), 5)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestWatchIsResumedAfterItsRootWasReplaced replaces a directory while nobody is
// connected. The client that comes back is told that it has missed something, and
// then what happens in the new directory.
func TestWatchIsResumedAfterItsRootWasReplaced(t *testing.T) {
	srv := newFileServer(t, nil)
	p := connectFiles(t, srv)
	base := t.TempDir()
	dir := base + "/d"
	putFile(t, dir+"/old", "")
	p.call("fs/watch", fileParams{"watchId": "w", "path": dir}, nil)
	p.close()
	<-p.served
	if err := os.Rename(dir, base+"/elsewhere"); err != nil {
		t.Fatal(err)
	}
	putFile(t, dir+"/new", "")
	p = resumeFiles(t, srv, &p.session)
	p.call("fs/watch", fileParams{"watchId": "w", "path": dir, "cursor": 0}, nil)
	overflow := false
	stop, stopped := make(chan struct{}), make(chan struct{})
	defer func() {
		close(stop)
		<-stopped
	}()
	go func() { // for when it is watched again cannot be seen
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				_ = os.WriteFile(dir+"/more", []byte(fmt.Sprint(i)), 0o644)
			}
		}
	}()
	p.await("an overflow, and then changes", func(m protocol.Message) bool {
		c, ok := changed(t, m, "w")
		if !ok {
			return false
		}
		for _, e := range c.Events {
			if e.Kind == "overflow" {
				overflow = true
			} else if e.Path == dir+"/more" {
				return overflow
			}
		}
		return false
	})
}

// TestUnwatchIsTheEnd ends a watch while an event waits for the client: none is
// told after the answer.
func TestUnwatchIsTheEnd(t *testing.T) {
	p := connectFiles(t, newFileServer(t, nil))
	dir := deepDir(t)
	p.call("fs/watch", fileParams{"watchId": "w", "path": dir}, nil)
	p.Pause()
	for i := range 12_000 { // far more than waits for a client
		f, err := os.Create(fmt.Sprint(dir, "/", i))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	unwatched := p.send("fs/unwatch", fileParams{"watchId": "w"})
	select {
	case <-unwatched:
		t.Error("answered to a client that does not read")
	case <-time.After(300 * time.Millisecond): // the answer is ready now if it does not wait for the event
	}
	p.Unpause()
	ended := <-unwatched
	if ended.Error != nil || ended.Notes == 0 {
		t.Errorf("%v, after %d events", ended.Error, ended.Notes)
	}
	p.call("environment/status", nil, nil)
	putFile(t, dir+"/unseen", "")
	p.call("fs/watch", fileParams{"watchId": "next", "path": dir}, nil)
	putFile(t, dir+"/seen", "")
	p.await("a change of the next watch", func(m protocol.Message) bool {
		_, ok := changed(t, m, "next")
		return ok
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.notes[ended.Notes:] {
		if _, ok := changed(t, m, "next"); !ok {
			t.Errorf("after the answer: %.200s", m.Params)
		}
	}
}

// TestWatchesBelongToTheSession loses connections and ends the session.
func TestWatchesBelongToTheSession(t *testing.T) {
	dir := t.TempDir()
	once := newFileServer(t, nil)
	first := connectFiles(t, once) // opens what the program opens once
	first.call("fs/watch", fileParams{"watchId": "0", "path": dir}, nil)
	first.close()
	<-first.served
	testkit.Shutdown(t, once)

	before := testkit.Descriptors(t)
	srv := newFileServer(t, nil)
	p := connectFiles(t, srv)
	const limit = 32
	for i := range limit {
		p.call("fs/watch", fileParams{"watchId": fmt.Sprint(i), "path": dir}, nil)
	}
	p.refused("fs/watch", fileParams{"watchId": "one more", "path": dir}, protocol.CodeInvalidRequest, "at most 32 watches may be open per session")
	p.call("fs/unwatch", fileParams{"watchId": "7"}, nil)
	p.call("fs/watch", fileParams{"watchId": "one more", "path": dir}, nil)

	p.close()
	<-p.served
	putFile(t, dir+"/meanwhile", "")
	q := resumeFiles(t, srv, &p.session)
	q.refused("fs/watch", fileParams{"watchId": "1", "path": t.TempDir()}, protocol.CodeInvalidRequest, "watch `1` is about another path: "+dir)
	for i := range 3 {
		q.call("fs/watch", fileParams{"watchId": fmt.Sprint(i), "path": dir, "cursor": 0}, nil)
		q.await("the event", func(m protocol.Message) bool {
			c, ok := changed(t, m, fmt.Sprint(i))
			return ok && c.Events[0].Cursor == 1 && c.Events[0].Path == dir+"/meanwhile"
		})
	}
	// A cursor of the future is one of another watch.
	q.call("fs/watch", fileParams{"watchId": "4", "path": dir, "cursor": 99}, nil)
	q.await("an overflow", func(m protocol.Message) bool {
		c, ok := changed(t, m, "4")
		return ok && c.Events[0].Kind == "overflow" && c.Events[0].Unwatched[0] == dir
	})
	q.close()
	<-q.served
	testkit.Shutdown(t, srv)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := testkit.Descriptors(t); n > before {
			return fmt.Errorf("%d descriptors are open, %d before", n, before)
		}
		return nil
	})
}
