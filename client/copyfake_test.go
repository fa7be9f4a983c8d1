//go:build unix

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// fileServer is a fake that has one tree. Its functions take paths without "file://".
type fileServer struct {
	gone bool                                  // the path of the copy does not exist
	list func(path string) []object            // the entries of a directory
	read func(path string) []byte              // the content of a file
	hold func(c *fakeConn, m fakeMessage) bool // takes over a request
}

func (s *fileServer) serve(c *fakeConn) {
	if !c.shake("fsMetadata", "fsRename", "fsWriteFileMode", "fileWriteStreaming") {
		return
	}
	for {
		m, ok := c.next()
		if !ok {
			return
		}
		path := strings.TrimPrefix(m.Params.Path, "file://")
		switch {
		case s.hold != nil && s.hold(c, m):
		case m.Method == "fs/getMetadata" && s.gone:
			c.refuse(m, protocol.CodeNotFound, "nothing there")
		case m.Method == "fs/getMetadata":
			c.reply(m, object{
				"isDirectory": true, "isFile": false, "isSymlink": false, "size": 0, "createdAtMs": 0, "modifiedAtMs": 1000,
				"kind": "directory", "mode": 0o755, "modifiedNs": 0,
			})
		case m.Method == "fs/canonicalize":
			c.reply(m, object{"path": m.Params.Path})
		case m.Method == "fs/readDirectory":
			c.reply(m, object{"entries": s.list(path)})
		case m.Method == "fs/readFile":
			c.reply(m, object{"dataBase64": s.read(path)})
		case m.ID != nil:
			c.reply(m, object{})
		}
	}
}

// entry describes a file as a listing does.
func entry(name, kind string, size int) object {
	return object{
		"fileName": name, "isDirectory": kind == "directory", "isFile": kind == "file",
		"kind": kind, "mode": 0o755, "size": size, "modifiedAtMs": 1234567890123, "modifiedNs": 456789,
	}
}

func linkEntry(name, target string) object {
	e := entry(name, "symlink", len(target))
	e["target"] = target
	return e
}

// TestCopyOutOfHostile copies from a server that wants to write somewhere else.
func TestCopyOutOfHostile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside, target := filepath.Join(dir, "outside"), filepath.Join(dir, "target")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{"", ".", "..", "../up", "a/b", "/" + outside + "/absolute", "nul\x00", "../outside/up"}
	tree := map[string][]object{
		"/src": {
			linkEntry("out", outside), entry("out", "directory", 0), entry("out", "directory", 0),
			linkEntry("up", ".."), entry("up", "directory", 0),
			linkEntry("file", filepath.Join(outside, "file")), entry("file", "file", 4),
			entry("sub", "directory", 0), linkEntry("sub", "../outside"),
			entry("fifo", "fifo", 0), linkEntry("empty", ""), entry("negative", "file", -5),
			entry("odd", "whatever", 0), entry("fine", "file", 4),
		},
		"/src/out": {entry("planted", "file", 4), linkEntry("link", "x")},
		"/src/up":  {entry("planted", "file", 4)},
		"/src/sub": {entry("planted", "file", 4)},
	}
	for _, name := range names {
		tree["/src"] = append(tree["/src"], entry(name, "file", 4), entry(name, "directory", 0), linkEntry(name, "/"))
	}
	s := &fileServer{list: func(path string) []object { return tree[path] }, read: func(string) []byte { return []byte("evil") }}
	env := newFake(t, s.serve).dial(nil)
	for range 2 { // the second time with what the first has left
		w := watch()
		err := env.FS("/src").CopyOut(".", target, &w.CopyOptions)
		if !errors.As(err, new(*client.CopyError)) {
			t.Fatalf("CopyOut: %v", err)
		}
		if w.last.LeftOut != 2 || w.last.Failed < int64(3*len(names)) {
			t.Errorf("CopyOut told %+v", w.last)
		}
	}
	if got, _ := os.ReadFile(filepath.Join(target, "fine")); string(got) != "evil" {
		t.Errorf("an honest file has %q", got)
	}
	for path, want := range map[string][]string{outside: nil, dir: {"outside", "target"}} {
		var got []string
		entries, err := os.ReadDir(path)
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q; %v", path, got, want, err)
		}
	}
}

// TestCopyOutOfEndless copies a tree that has no end.
func TestCopyOutOfEndless(t *testing.T) {
	t.Parallel()
	s := &fileServer{list: func(string) []object { return []object{entry("d", "directory", 0)} }}
	w := watch()
	err := newFake(t, s.serve).dial(nil).FS("/src").CopyOut(".", filepath.Join(t.TempDir(), "target"), &w.CopyOptions)
	failed, ok := errors.AsType[*client.CopyError](err)
	if !ok || failed.Failed != 1 || !strings.Contains(err.Error(), "the tree may contain its own copy") {
		t.Errorf("CopyOut: %v", err)
	}
}

// TestCopyOutGrows copies files that are not as long as the server listed them.
func TestCopyOutGrows(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "target")
	s := &fileServer{
		list: func(string) []object {
			return []object{entry("shorter", "file", 10), entry("longer", "file", 10), entry("huge", "file", 10)}
		},
		read: func(path string) []byte {
			return testkit.Pattern(map[string]int64{"shorter": 5, "longer": 1000, "huge": 4 << 20}[filepath.Base(path)])
		},
	}
	err := newFake(t, s.serve).dial(nil).FS("/src").CopyOut(".", target, nil)
	if failed, ok := errors.AsType[*client.CopyError](err); !ok || failed.Failed != 1 || !strings.Contains(err.Error(), "/huge: the file became much larger") {
		t.Errorf("CopyOut: %v", err)
	}
	for name, want := range map[string]int64{"shorter": 5, "longer": 1000} {
		if info, err := os.Stat(filepath.Join(target, name)); err != nil || info.Size() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := os.Stat(filepath.Join(target, "huge")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("huge: %v", err)
	}
}

// TestCopyInGrows copies a large file that becomes shorter meanwhile.
func TestCopyInGrows(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, testkit.Pattern(2<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	var removed []string
	s := &fileServer{
		gone: true,
		list: func(string) []object { return nil },
		hold: func(c *fakeConn, m fakeMessage) bool {
			switch m.Method {
			case "fs/open":
				if err := os.Truncate(source, 1<<20+5); err != nil {
					t.Error(err)
				}
			case "fs/remove":
				removed = append(removed, m.Params.Path)
			case "fs/rename":
				t.Error("the file got its name")
			}
			return false
		},
	}
	env := newFake(t, s.serve).dial(nil)
	err := env.FS("/far").CopyIn(source, "file", nil)
	if err == nil || !strings.Contains(err.Error(), "the file became shorter") {
		t.Errorf("CopyIn: %v", err)
	}
	_ = env.Close()
	if len(removed) != 1 || !strings.HasPrefix(removed[0], "file:///far/.exec-server-") {
		t.Errorf("removed: %q", removed)
	}
}

// interruption is a copy of one large file that is interrupted when a block is under way.
type interruption struct {
	server  fileServer
	removed []string // by the client
	renamed int
	blocks  int // requests
}

// interrupt makes a fake that calls cancel at the second block.
func interrupt(cancel func(), list ...object) *interruption {
	i := new(interruption)
	i.server.list = func(string) []object { return list }
	i.server.hold = func(c *fakeConn, m fakeMessage) bool {
		switch m.Method {
		case protocol.MethodRemove:
			i.removed = append(i.removed, m.Params.Path)
		case protocol.MethodRename:
			i.renamed++
		case protocol.MethodReadBlock, protocol.MethodWriteBlock:
			if i.blocks++; i.blocks > 1 {
				cancel()
				return true
			}
			if m.Method == protocol.MethodReadBlock {
				c.reply(m, object{"chunk": testkit.Pattern(256 << 10), "eof": false})
				return true
			}
		}
		return false
	}
	return i
}

// TestCopyInterrupted checks that an interrupted copy removes a file that was new, and
// reports an existing one as incomplete.
func TestCopyInterrupted(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	for _, existing := range []bool{false, true} {
		for _, in := range []bool{true, false} {
			t.Run(fmt.Sprintf("in %v, existing %v", in, existing), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancel(background(t))
				defer cancel()
				local, content := t.TempDir(), append([]byte("old"), testkit.Pattern(size)...)
				var list []object
				if existing || !in {
					list = append(list, entry("large", "file", size))
				}
				if existing || in {
					if err := os.WriteFile(filepath.Join(local, "large"), content, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				fake := interrupt(func() {
					if existing && !in { // until the first block is written
						testkit.WaitFor(t, testkit.Patience, func() error {
							data, err := os.ReadFile(filepath.Join(local, "large"))
							if err == nil && bytes.Equal(data, content) {
								err = errors.New("nothing is written")
							}
							return err
						})
					}
					cancel()
				}, list...)
				opts := new(client.Options)
				client.SetCleanupTime(opts, testkit.Patience)
				env := newFake(t, fake.server.serve).dial(opts)
				far, err, source := env.FS("/far").WithContext(ctx), error(nil), "/far/large"
				if in {
					source = filepath.Join(local, "large")
					err = far.CopyIn(local, ".", nil)
				} else {
					err = far.CopyOut(".", local, nil)
				}
				_ = env.Close()
				failed, ok := errors.AsType[*fs.PathError](err)
				if !ok || !errors.Is(err, context.Canceled) {
					t.Fatalf("the copy: %v", err)
				}
				if said := strings.Contains(err.Error(), "the file is incomplete"); said != existing || said && failed.Path != source {
					t.Errorf("the copy: %v", err)
				}
				names, _ := filepath.Glob(filepath.Join(local, "*"))
				hidden, _ := filepath.Glob(filepath.Join(local, ".*"))
				if len(hidden) > 0 || len(names) > 0 != (existing || in) {
					t.Errorf("left behind: %q, %q", names, hidden)
				}
				if in && !existing && (len(fake.removed) != 1 || !strings.HasPrefix(fake.removed[0], "file:///far/.exec-server-")) || existing && len(fake.removed) > 0 || fake.renamed > 0 {
					t.Errorf("removed %q, renamed %d", fake.removed, fake.renamed)
				}
			})
		}
	}
}

// TestCloseAfterCut loses the connection when a file that is written is being closed: only
// an answer to that says that its content is safe.
func TestCloseAfterCut(t *testing.T) {
	t.Parallel()
	const size = 300 << 10
	var closings atomic.Int32
	hold := func(c *fakeConn, m fakeMessage) bool {
		switch {
		case m.Method == protocol.MethodClose:
			if closings.Add(1) == 1 {
				_ = c.conn.Close()
				return true
			}
		case m.Method == protocol.MethodGetMetadata && strings.HasPrefix(m.Params.Path, "file:///far/.exec-server-"):
			c.reply(m, object{"isDirectory": false, "isFile": true, "isSymlink": false, "size": size, "createdAtMs": 0, "modifiedAtMs": 1000, "kind": "file", "mode": 0o644, "modifiedNs": 0})
			return true
		}
		return false
	}
	t.Run("copied", func(t *testing.T) {
		local := filepath.Join(t.TempDir(), "large")
		if err := os.WriteFile(local, testkit.Pattern(size), 0o644); err != nil {
			t.Fatal(err)
		}
		s := &fileServer{gone: true, hold: hold}
		if err := newFake(t, s.serve, s.serve).dial(nil).FS("/far").CopyIn(local, "large", nil); err != nil {
			t.Errorf("CopyIn: %v", err)
		}
		if n := closings.Load(); n != 2 {
			t.Errorf("the file was closed %d times", n)
		}
	})
	t.Run("created", func(t *testing.T) {
		closings.Store(0)
		s := &fileServer{hold: hold}
		file, err := newFake(t, s.serve, s.serve).dial(nil).FS("/far").Create("f")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = file.Write([]byte("text"))
		if err := file.Close(); !errors.As(err, new(*client.InterruptedError)) {
			t.Errorf("closing a file whose end is unknown: %v", err)
		}
	})
}

// TestCopyHides checks that a large new file has a hidden name and its mode until it is
// whole, and does not replace what has got its name meanwhile.
func TestCopyHides(t *testing.T) {
	t.Parallel()
	const size = 300 << 10
	t.Run("in", func(t *testing.T) {
		t.Parallel()
		local := filepath.Join(t.TempDir(), "large")
		if err := errors.Join(os.WriteFile(local, testkit.Pattern(size), 0o600), os.Chmod(local, 0o640)); err != nil {
			t.Fatal(err)
		}
		s := &fileServer{gone: true, hold: func(c *fakeConn, m fakeMessage) bool {
			switch m.Method {
			case protocol.MethodOpen:
				if !strings.HasPrefix(m.Params.Path, "file:///far/.exec-server-") || m.Params.CreateMode != 0o640 {
					t.Errorf("the client opens %s with the mode %o", m.Params.Path, m.Params.CreateMode)
				}
			case protocol.MethodRename:
				if !m.Params.NoReplace {
					t.Error("the client would replace a file")
				}
				c.refuse(m, protocol.CodeInvalidRequest, "File exists (os error 17)")
				return true
			}
			return false
		}}
		err := newFake(t, s.serve).dial(nil).FS("/far").CopyIn(local, "large", nil)
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("CopyIn: %v", err)
		}
	})
	t.Run("out", func(t *testing.T) {
		t.Parallel()
		target := t.TempDir()
		s := &fileServer{
			list: func(string) []object { return []object{entry("large", "file", size)} },
			hold: func(c *fakeConn, m fakeMessage) bool {
				if m.Method != protocol.MethodReadBlock {
					return false
				}
				_, err := os.Lstat(filepath.Join(target, "large"))
				hidden, _ := filepath.Glob(filepath.Join(target, ".exec-server-*"))
				if m.Params.Offset == 0 {
					if !errors.Is(err, fs.ErrNotExist) || len(hidden) != 1 {
						t.Errorf("there are %q, and the target has %v", hidden, err)
					} else if info, err := os.Lstat(hidden[0]); err != nil || info.Mode() != 0o755 {
						t.Errorf("the hidden file has %v, %v", info.Mode(), err)
					}
					if err := os.WriteFile(filepath.Join(target, "large"), []byte("mine"), 0o600); err != nil {
						t.Error(err)
					}
				}
				c.reply(m, object{"chunk": testkit.Pattern(min(256<<10, size-int64(m.Params.Offset))), "eof": m.Params.Offset > 0})
				return true
			},
		}
		err := newFake(t, s.serve).dial(nil).FS("/src").CopyOut(".", target, nil)
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("CopyOut: %v", err)
		}
		data, _ := os.ReadFile(filepath.Join(target, "large"))
		if hidden, _ := filepath.Glob(filepath.Join(target, ".*")); string(data) != "mine" || len(hidden) > 0 {
			t.Errorf("the target has %.20q, and there are %q", data, hidden)
		}
	})
}

// holdUntil holds the answers to requests of a method until n of them are there. Later
// ones are answered at once: how many follow depends on the size of the blocks.
func holdUntil(method string, n int, reply func(c *fakeConn, m fakeMessage)) func(*fakeConn, fakeMessage) bool {
	var held []fakeMessage
	return func(c *fakeConn, m fakeMessage) bool {
		if m.Method != method {
			return false
		}
		if held = append(held, m); len(held) >= n {
			for _, m := range held {
				reply(c, m)
			}
			held, n = nil, 1
		}
		return true
	}
}

// TestCopyPipelines checks that no request waits for the answer to another: the server
// answers none before it has many.
func TestCopyPipelines(t *testing.T) {
	t.Parallel()
	const files = 100
	source := t.TempDir()
	fill(t, source, files)
	var entries []object
	for i := range files {
		entries = append(entries, entry(fmt.Sprint(i), "file", 3))
	}
	nothing := func(string) []object { return nil }
	done := func(c *fakeConn, m fakeMessage) { c.reply(m, object{}) }
	for name, test := range map[string]struct {
		server fileServer
		copy   func(env *client.Environment) error
	}{
		"in": {
			fileServer{list: nothing, hold: holdUntil("fs/writeFile", files, done)},
			func(env *client.Environment) error { return env.FS("/far").CopyIn(source, "copy", nil) },
		},
		"out": {
			fileServer{
				list: func(string) []object { return entries },
				hold: holdUntil("fs/readFile", files, func(c *fakeConn, m fakeMessage) { c.reply(m, object{"dataBase64": []byte("abc")}) }),
			},
			func(env *client.Environment) error {
				return env.FS("/far").CopyOut(".", filepath.Join(t.TempDir(), "copy"), nil)
			},
		},
		"blocks": {
			fileServer{gone: true, list: nothing, hold: holdUntil("fs/writeBlock", 4, done)},
			func(env *client.Environment) error {
				large := filepath.Join(t.TempDir(), "large")
				if err := os.WriteFile(large, testkit.Pattern(5<<20), 0o644); err != nil {
					return err
				}
				return env.FS("/far").CopyIn(large, "copy", nil)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := test.copy(newFake(t, test.server.serve).dial(nil)); err != nil {
				t.Error(err)
			}
		})
	}
}
