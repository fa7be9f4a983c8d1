//go:build unix

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// patient returns the files of a directory, and gives up on them after a while.
func patient(t *testing.T, env *client.Environment, dir string) *client.FS {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return env.FS(dir).WithContext(ctx)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		dir := tree(t)
		fsys := patient(t, env, dir)
		if p.codex {
			for event, err := range fsys.Watch("a") {
				if path, ok := errors.AsType[*fs.PathError](err); !ok || path.Op != "watch" || !errors.As(err, new(*client.UnsupportedError)) {
					t.Errorf("%v, %v", event, err)
				}
			}
			return
		}
		at := func(name string) string { return filepath.Join(dir, name) }
		steps := []func() error{
			func() error { return os.Mkdir(at("a/b/ä %20"), 0o700) },
			func() error { return errors.Join(os.Mkdir(at("beside"), 0o700), os.Chmod(at("a/b/c.txt"), 0o600)) },
			func() error { return os.Remove(at("a/b/ä %20")) },
		}
		var got []string
		for event, err := range fsys.Watch("a") {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimSpace(string(event.Kind)+" "+event.Name))
			if len(got) > len(steps) {
				break
			}
			if err := steps[len(got)-1](); err != nil {
				t.Fatal(err)
			}
		}
		if want := "[began created a/b/ä %20 modified a/b/c.txt removed a/b/ä %20]"; fmt.Sprint(got) != want {
			t.Errorf("%v, want %v", got, want)
		}
		// The loop has ended the watch, so that a session can have any number after each other.
		for range 40 {
			for _, err := range fsys.Watch(".") {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		for _, err := range fsys.Watch("missing") {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v", err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for event, err := range env.FS(dir).WithContext(ctx).Watch(".") {
			if event.Kind == client.WatchBegan {
				cancel()
			} else if !errors.Is(err, context.Canceled) {
				t.Errorf("%v, %v", event, err)
			}
		}
	})
}

// A watch continues over the next connection, with the changes that happened meanwhile.
func TestWatchDuringCuts(t *testing.T) {
	t.Parallel()
	for name, serve := range listening {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, nil)
			p := newProxy(t, url)
			env, err := client.Dial(background(t), p.url, nil)
			env = opened(t, env, err)
			beside, err := client.Dial(background(t), url, nil)
			beside = opened(t, beside, err)
			dir, made := t.TempDir(), 0
			// meanwhile makes a directory while there is no connection, and waits until the
			// server knows.
			meanwhile := func() {
				for event, err := range patient(t, beside, dir).Watch(".") {
					if err != nil {
						t.Fatal(err)
					}
					if event.Kind != client.WatchBegan {
						return
					}
					p.setRefuse(true)
					p.cut()
					made++
					if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(made)), 0o700); err != nil {
						t.Fatal(err)
					}
				}
			}
			for event, err := range patient(t, env, dir).Watch(".") {
				if err != nil {
					t.Fatal(err)
				}
				if made > 0 && (event.Kind != client.FileCreated || event.Name != fmt.Sprint(made)) {
					t.Fatalf("%v after %d directories", event, made)
				}
				if made == 5 {
					break
				}
				meanwhile()
				p.setRefuse(false)
			}
			if made != 5 || p.cutCount() < 5 {
				t.Errorf("%d directories, %d cuts", made, p.cutCount())
			}
		})
	}
}

// When the server has lost the session, the loop is told that it may have missed changes.
func TestWatchInAnotherSession(t *testing.T) {
	t.Parallel()
	first, second := serveUnix(t, nil), serveUnix(t, nil)
	p := newProxy(t, first)
	env, err := client.Dial(background(t), p.url, nil)
	env = opened(t, env, err)
	dir := tree(t)
	var got []string
	for event, err := range patient(t, env, dir).Watch("a") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s%s", event.Kind, event.Name, event.Unwatched))
		switch event.Kind {
		case client.WatchBegan:
			p.lead(func() (net.Conn, error) { return net.Dial("unix", strings.TrimPrefix(second, "unix://")) })
			p.cut()
			continue
		case client.WatchOverflow:
			if err := os.Mkdir(filepath.Join(dir, "a/new"), 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		break
	}
	if want := []string{"began []", "overflow [a]", "created a/new[]"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A loop that takes no events does not make the client grow: not by many events, and not by
// fewer with long names.
func TestWatchThatTakesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		events int // of each of five notifications
		dir    string
	}{"many": {1000, ""}, "long": {100, strings.Repeat("long/", 800)}} {
		t.Run(name, func(t *testing.T) { takeNothing(t, test.events, test.dir) })
	}
}

// takeNothing watches a directory where five times so many files appear before the loop goes
// on, and one more.
func takeNothing(t *testing.T, events int, below string) {
	f := newFake(t, func(c *fakeConn) {
		if !c.shake("fsWatch") {
			return
		}
		id := ""
		for cursor := 0; ; {
			m, ok := c.next()
			if !ok {
				return
			}
			changed := func(events int) {
				list := make([]object, events)
				for i := range list {
					cursor++
					list[i] = object{"cursor": cursor, "kind": "created", "path": fmt.Sprintf("file:///dir/%s%d", below, cursor)}
				}
				c.notify(protocol.NotificationChanged, object{"watchId": id, "events": list})
			}
			switch m.Method {
			case protocol.MethodWatch:
				id = m.Params.WatchID
				c.reply(m, object{"cursor": 0})
			case protocol.MethodGetMetadata:
				for range 5 {
					changed(events)
				}
				changed(1)
				c.reply(m, object{"isFile": true})
			case protocol.MethodUnwatch:
				c.reply(m, object{})
			default:
				t.Errorf("%s", m.Method)
			}
		}
	})
	fsys := patient(t, f.dial(nil), "/")
	var got []client.FileEvent
	for event, err := range fsys.Watch("dir") {
		if err != nil {
			t.Fatal(err)
		}
		if event.Kind == client.WatchBegan { // when it is answered, the events have come
			if _, err := fsys.Stat("file"); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got = append(got, event); event.Name == fmt.Sprintf("dir/%s%d", below, 5*events+1) {
			break
		}
	}
	if len(got) > min(4096, 5*events) || got[0].Kind != client.WatchOverflow || !slices.Equal(got[0].Unwatched, []string{"dir"}) || got[1].Kind != client.FileCreated {
		t.Errorf("%d events: %v", len(got), got[:min(3, len(got))])
	}
}
