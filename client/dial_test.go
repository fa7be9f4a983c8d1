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
	"strings"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

func TestDialErrors(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	quiet := newFake(t, func(c *fakeConn) { c.drainSilently() })
	old := newFake(t, func(c *fakeConn) {
		if m, ok := c.expect("initialize"); ok {
			c.reply(m, object{"protocolVersion": "exec-server.v0"})
		}
		c.drain()
	})
	no := newFake(t, func(c *fakeConn) {
		if m, ok := c.expect("initialize"); ok {
			c.refuse(m, protocol.CodeInvalidRequest, "the server has its limit of 1 sessions")
		}
	})
	const short = 50 * time.Millisecond
	for _, test := range []struct {
		name, url string
		opts      *client.Options
		want      string
		is        error
	}{
		{"nobody", "ws://127.0.0.1:1/?token=secret", nil, "failed to connect to exec-server ws://127.0.0.1:1/: ", nil},
		{"no URL", "http://127.0.0.1:1", nil, "unsupported URL", nil},
		{"silent", "ws://" + silent.Addr().String(), &client.Options{ConnectTimeout: short}, "connecting timed out after 50ms", context.DeadlineExceeded},
		{"quiet", quiet.url, &client.Options{InitializeTimeout: short}, "the initialize handshake timed out after 50ms", context.DeadlineExceeded},
		{"old", old.url, nil, "no sessions", nil},
		{"refusing", no.url, nil, "limit of 1 sessions", protocol.ErrInvalidRequest},
	} {
		_, err := client.Dial(background(t), test.url, test.opts)
		if !errors.As(err, new(*client.DialError)) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", test.name, err)
		}
		if test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %v is not %v", test.name, err, test.is)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := client.Dial(ctx, quiet.url, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func (c *fakeConn) drainSilently() {
	for {
		if _, ok := c.next(); !ok {
			return
		}
	}
}

// Servers of some releases tell about their machine only when asked, or not at
// all.
func TestEnvironmentInfoIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known=%v", known), func(t *testing.T) {
			t.Parallel()
			f := newFake(t, func(c *fakeConn) {
				if m, ok := c.expect("initialize"); ok {
					c.reply(m, object{"sessionId": "s"})
				}
				c.expect("initialized")
				m, ok := c.expect("environment/info")
				switch {
				case !ok:
					return
				case known:
					c.reply(m, object{"shell": object{"name": "zsh", "path": "/bin/zsh"}, "cwd": "file:///w%20x"})
				default:
					c.refuse(m, protocol.CodeMethodNotFound, "no")
				}
				c.drain()
			})
			info := f.dial(nil).Info()
			if known != (info.Shell == "zsh" && info.ShellPath == "/bin/zsh" && info.Dir == "/w x") {
				t.Errorf("%+v", info)
			}
		})
	}
}

// Another server may mean something else by the name of the machine.
func TestMachineOfAnotherKind(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		machine any
		want    string
	}{{"box-7", "box-7"}, {object{"cores": 2}, ""}, {7, ""}, {nil, ""}} {
		f := newFake(t, func(c *fakeConn) {
			if m, ok := c.expect("initialize"); ok {
				c.reply(m, object{"sessionId": "s", "environmentInfo": object{
					"shell": object{"name": "sh", "path": "/bin/sh"}, "cwd": "file:///", "machine": row.machine,
				}})
			}
			c.expect("initialized")
			c.drain()
		})
		if info := f.dial(nil).Info(); info.Machine != row.want || info.Shell != "sh" {
			t.Errorf("%v: %+v", row.machine, info)
		}
	}
}

// Nothing happens in another directory because the one that is meant is gone.
func TestDirectoryOfServerIsGone(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(c *fakeConn) {
		if m, ok := c.expect("initialize"); ok {
			c.reply(m, object{"sessionId": "s", "environmentInfo": object{
				"shell": object{"name": "sh", "path": "/bin/sh"}, "cwd": nil, "userHomeDir": "file:///home", "platformOs": "linux",
			}})
		}
		c.expect("initialized")
		if m, ok := c.expect("fs/remove"); ok && m.Params.Path != "file:///elsewhere/f" {
			t.Errorf("asked to remove %s", m.Params.Path)
		} else if ok {
			c.reply(m, object{})
		}
		c.drain()
	})
	env := f.dial(nil)
	for _, dir := range []string{"", "below"} {
		c := env.Command(background(t), "true")
		c.Dir = dir
		if err := c.Start(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "is gone") {
			t.Errorf("start in %q: %v", dir, err)
		}
		if err := env.FS(dir).Remove("f"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remove in %q: %v", dir, err)
		}
	}
	if err := env.FS("/elsewhere").Remove("f"); err != nil {
		t.Error(err)
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("secret", "correct horse battery\n")
	authenticator, err := server.NewAuthenticator(server.AuthConfig{TokenFile: secret})
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, serveWebSocket(t, &server.Options{Auth: authenticator}))
	for _, opts := range []*client.Options{{Token: "correct horse battery"}, {TokenFile: secret}} {
		env, err := client.Dial(background(t), p.url, opts)
		env = opened(t, env, err)
		if err := child(env, "exit", "0").Run(); err != nil {
			t.Error(err)
		}
	}
	for _, opts := range []*client.Options{nil, {Token: "wrong"}, {TokenFile: write("wrong", "wrong")}} {
		_, err := client.Dial(background(t), p.url, opts)
		if dial, ok := errors.AsType[*client.DialError](err); !ok || dial.Status != 401 || !strings.Contains(err.Error(), "websocket bearer token") {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	for _, opts := range []*client.Options{
		{Token: "a", TokenFile: "b"},
		{Token: "a\nb"},
		{TokenFile: filepath.Join(dir, "missing")},
		{TokenFile: write("empty", " \n")},
	} {
		if _, err := client.Dial(background(t), p.url, opts); err == nil {
			t.Errorf("%+v was accepted", opts)
		}
	}

	// A file with a token is read at every connection.
	rotating := write("rotating", "correct horse battery")
	env, err := client.Dial(background(t), p.url, &client.Options{TokenFile: rotating})
	env = opened(t, env, err)
	write("rotating", "wrong")
	p.cut()
	testkit.Within(t, "the end", func() { <-env.Done() })
	if dial, ok := errors.AsType[*client.DialError](env.Err()); !ok || dial.Status != 401 {
		t.Errorf("Err: %v", env.Err())
	}
}
