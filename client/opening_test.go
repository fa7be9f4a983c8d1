//go:build unix

package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// stat answers a fs/getMetadata: a file of a byte.
func (c *fakeConn) stat(m fakeMessage) {
	c.reply(m, object{"isDirectory": false, "isFile": true, "isSymlink": false, "size": 1})
}

// A file that is open on the server when nobody waits for it any more is closed,
// and not before it is open.
func TestOpenIsAbandoned(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*client.FS) error{
		"Open":   func(files *client.FS) error { _, err := files.Open("x"); return err },
		"Create": func(files *client.FS) error { _, err := files.Create("x"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(context.Background())
			abandoned, closed := make(chan struct{}), make(chan string, 1)
			f := newFake(t, func(c *fakeConn) {
				if !c.shake("fileWriteStreaming") {
					return
				}
				m, ok := c.next()
				if ok && m.Method == "fs/getMetadata" {
					c.stat(m)
					m, ok = c.next()
				}
				if !ok || m.Method != "fs/open" {
					t.Errorf("the client sent %s", m.Method)
					return
				}
				cancel()
				<-abandoned
				c.reply(m, object{})
				if m, ok := c.expect("fs/close"); ok {
					closed <- m.Params.HandleID
					c.reply(m, object{})
				}
				c.drain()
			})
			env := f.dial(nil)
			if err := open(env.FS("/").WithContext(ctx)); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			close(abandoned)
			testkit.Within(t, "close", func() {
				if id := <-closed; id == "" {
					t.Error("another handle is closed")
				}
			})
		})
	}
}

// However often an opening is cancelled, the connection can open more.
func TestManyOpenings(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		dir := t.TempDir()
		files := env.FS(dir)
		if err := files.WriteFile("x", []byte("x")); err != nil {
			t.Fatal(err)
		}
		for i := range 300 {
			ctx, cancel := context.WithCancel(background(t))
			stop := time.AfterFunc(time.Duration(i%30)*20*time.Microsecond, cancel)
			if file, err := files.WithContext(ctx).Open("x"); err == nil {
				_ = file.Close()
			} else if !errors.Is(err, context.Canceled) {
				t.Fatalf("opening %d: %v", i, err)
			}
			stop.Stop()
			cancel()
		}
		testkit.WaitFor(t, testkit.Patience, func() error {
			file, err := files.Open("x")
			if err != nil {
				return err
			}
			return file.Close()
		})
	})
}

// A file that is created while the link is down is closed over the connection that
// opened it.
func TestCreateDuringOutage(t *testing.T) {
	t.Parallel()
	down, closed := make(chan struct{}), make(chan struct{})
	broken := make(chan struct{})
	one := func(c *fakeConn) {
		if c.shake("fileWriteStreaming") {
			close(broken)
		}
	}
	two := func(c *fakeConn) {
		<-down
		if !c.shake("fileWriteStreaming") {
			return
		}
		for _, method := range []string{"fs/open", "fs/writeBlock", "fs/close"} {
			m, ok := c.expect(method)
			if !ok {
				return
			}
			c.reply(m, object{})
		}
		close(closed)
		c.drain()
	}
	env := newFake(t, one, two).dial(nil)
	<-broken
	created := make(chan error, 1)
	go func() {
		file, err := env.FS("/").Create("x")
		if err == nil {
			_, err = file.Write([]byte("x"))
			err = errors.Join(err, file.Close())
		}
		created <- err
	}()
	time.AfterFunc(100*time.Millisecond, func() { close(down) }) // the file is being created by then
	testkit.Within(t, "creating", func() {
		if err := <-created; err != nil {
			t.Error(err)
		}
		<-closed
	})
}

// A process that a server starts although nobody waits for it any more is ended,
// also where the server has not known it when it was first told to.
func TestStartIsAbandonedBeforeItsAnswer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	terminated := make(chan struct{})
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		start, ok := c.expect("process/start")
		cancel()
		if m, ok := c.expect("process/terminate"); ok {
			c.reply(m, object{"running": false}) // as from servers that serve in no order
		}
		if !ok {
			return
		}
		c.reply(start, object{"processId": start.Params.ProcessID})
		if m, ok := c.expect("process/terminate"); ok {
			c.reply(m, object{"running": true})
			close(terminated)
		}
		c.drain()
	})
	env := f.dial(nil)
	if err := childContext(ctx, env, "x").Run(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	testkit.Within(t, "terminate", func() { <-terminated })
}
