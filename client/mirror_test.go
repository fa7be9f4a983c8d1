//go:build unix

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/server"
)

// using is what a row of the mirror works with.
type using struct {
	context.Context
	env    *client.Environment                            // of all rows of a place
	dir    string                                         // of the row's own
	echo   string                                         // address of a listener that sends back what comes
	fresh  func(opts *client.Options) *client.Environment // another Environment of the same kind
	shares bool                                           // all of them are at one server
}

// row uses something of the client in earnest, but quickly.
type row struct {
	use func(u *using) error
	// needs is the capability without which use must fail with an *UnsupportedError that
	// names it. The released server has none of these.
	needs string
}

// mirrorPlaces are all ways to an Environment. Each call of open returns one at the same
// server if shares is true.
var mirrorPlaces = []struct {
	name          string
	codex, shares bool
	serve         func(t *testing.T) (open func(t testing.TB, opts *client.Options) *client.Environment)
}{
	{name: "local", serve: alone(openLocal)},
	{name: "stdio", serve: alone(openStdio)},
	{name: "ws", shares: true, serve: dialing(func(t *testing.T) string { return serveWebSocket(t, keeping) })},
	{name: "unix", shares: true, serve: dialing(func(t *testing.T) string { return serveUnix(t, keeping) })},
	{name: "codex-ws", codex: true, shares: true, serve: dialing(func(t *testing.T) string {
		return testkit.ServeCommand(t, codexCommand(t, "ws://127.0.0.1:0"))
	})},
	{name: "codex-stdio", codex: true, serve: alone(openCodexStdio)},
	{name: "command-ws", shares: true, serve: dialing(func(t *testing.T) string {
		return testkit.ServeCommand(t, otherCommand(t, "ws://127.0.0.1:0"))
	})},
	{name: "command-stdio", serve: alone(openCommandStdio)},
}

var keeping = &server.Options{Auth: server.Unauthenticated, Session: server.SessionOptions{MaxKeep: time.Hour}}

type opening = func(testing.TB, *client.Options) *client.Environment

func alone(open opening) func(*testing.T) opening {
	return func(*testing.T) opening { return open }
}

func dialing(serve func(*testing.T) string) func(*testing.T) opening {
	return func(t *testing.T) opening {
		url := serve(t)
		return func(t testing.TB, opts *client.Options) *client.Environment {
			env, err := client.Dial(background(t), url, opts)
			return opened(t, env, err)
		}
	}
}

// TestMirror uses every method of the client in every way to a server. What the released
// server lacks is an *UnsupportedError, and nothing else.
func TestMirror(t *testing.T) {
	t.Parallel()
	for _, p := range mirrorPlaces {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			open := p.serve(t)
			env := open(t, nil)
			u := using{env: env, echo: echoing(t), shares: p.shares}
			for _, name := range slices.Sorted(maps.Keys(mirror)) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
					defer cancel()
					r, u := mirror[name], u
					u.Context, u.dir = ctx, t.TempDir()
					u.fresh = func(opts *client.Options) *client.Environment { return open(t, opts) }
					var err error
					testkit.Within(t, name, func() { err = r.use(&u) })
					if has := env.Info().Capabilities[r.needs]; r.needs == "" || has {
						if err != nil {
							t.Error(err)
						}
						return
					}
					// A session that ends with its connection cannot be kept, or controlled by others.
					// No server records or has a page unless it is told to.
					if !p.codex && r.needs != "recordings" && r.needs != "webLink" && (p.shares || !strings.HasPrefix(r.needs, "session")) {
						t.Errorf("the server does not announce %s", r.needs)
					}
					unsupported, ok := errors.AsType[*client.UnsupportedError](err)
					if !ok || unsupported.Capability != r.needs || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), r.needs) {
						t.Errorf("without %s: %v", r.needs, err)
					}
				})
			}
		})
	}
}

// echoing listens for connections and sends back what comes over them.
func echoing(t *testing.T) (address string) {
	l := listenFar(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				// Not conn itself: package net keeps pipes between sockets for the next Copy.
				_, _ = io.Copy(struct{ io.Writer }{conn}, conn)
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// TestMirrorIsComplete finds the methods without a row, and the rows without a method.
func TestMirrorIsComplete(t *testing.T) {
	t.Parallel()
	methods := make(map[string]bool)
	seen := make(map[reflect.Type]bool)
	for _, t := range []reflect.Type{
		reflect.TypeFor[*client.Environment](), reflect.TypeFor[*client.Process](),
		reflect.TypeFor[*client.Cmd](), reflect.TypeFor[*client.FS](),
	} {
		methodsOf(t, methods, seen)
	}
	for name := range methods {
		if _, ok := mirror[name]; !ok {
			t.Errorf("no row uses %s", name)
		}
	}
	for name := range mirror {
		if !methods[name] {
			t.Errorf("nothing has the method %s", name)
		}
	}
	if len(methods) < 100 {
		t.Errorf("only %d methods were found", len(methods))
	}
}

// methodsOf adds the methods of a type, and those of what they return.
func methodsOf(t reflect.Type, methods map[string]bool, seen map[reflect.Type]bool) {
	base := t
	for base.Kind() == reflect.Pointer || base.Kind() == reflect.Slice || base.Kind() == reflect.Chan {
		base = base.Elem()
	}
	if base.Kind() == reflect.Func { // an iterator: what its yield function takes
		for in := range base.Ins() {
			if in.Kind() == reflect.Func {
				for part := range in.Ins() {
					methodsOf(part, methods, seen)
				}
			}
		}
		return
	}
	path := base.PkgPath()
	ours := path == reflect.TypeFor[client.Cmd]().PkgPath()
	if seen[base] || !ours && (base.Kind() != reflect.Interface || base == reflect.TypeFor[error]()) {
		return
	}
	seen[base] = true
	if base.Kind() == reflect.Struct {
		for i := range base.NumField() {
			if f := base.Field(i); f.IsExported() && !f.Anonymous && f.Type.Kind() != reflect.Func && f.Type.Kind() != reflect.Interface {
				methodsOf(f.Type, methods, seen)
			}
		}
	}
	has := base
	if base.Kind() != reflect.Interface {
		has = reflect.PointerTo(base)
	}
	for m := range has.Methods() {
		if promoted(base, m) {
			continue
		}
		name := base.Name() + "." + m.Name
		if !ours {
			name = filepath.Base(path) + "." + name
		}
		methods[name] = true
		for out := range m.Type.Outs() {
			methodsOf(out, methods, seen)
		}
	}
}

// promoted reports whether a method of a type is that of an embedded type.
func promoted(t reflect.Type, m reflect.Method) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if inner, ok := f.Type.MethodByName(m.Name); f.Anonymous && ok && inner.Type.NumIn() == m.Type.NumIn() && inner.Type.NumOut() == m.Type.NumOut() {
			return true
		}
	}
	return false
}

// check returns an error unless ok.
func check(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// path returns the path of a name in the row's directory.
func (u *using) path(name string) string { return filepath.Join(u.dir, name) }

// fs returns the files of the row's directory.
func (u *using) fs() *client.FS { return u.env.FS(u.dir).WithContext(u) }

// file writes a file of the row's directory, and returns its name.
func (u *using) file(name, content string) string {
	if err := os.WriteFile(u.path(name), []byte(content), 0o600); err != nil {
		panic(err)
	}
	return name
}

// child makes the command of a child program, which ends with the row.
func (u *using) child(name string, args ...string) *client.Cmd {
	return childContext(u, u.env, name, args...)
}

// idle starts a process that runs until it is killed.
func (u *using) idle() (*client.Cmd, error) {
	c := u.child("idle")
	return c, c.Start()
}

// killed waits for the end of a process that was killed.
func killed(c *client.Cmd) error {
	err := c.Wait()
	exit, ok := errors.AsType[*client.ExitError](err)
	return check(ok && !exit.Success(), "it ended with %v", err)
}
