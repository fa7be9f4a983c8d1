//go:build unix

package client_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// manyNames is more than a page of a listing has.
const manyNames = 17_000

// manyFiles makes a directory with empty files that all have one time.
func manyFiles(t *testing.T) string {
	dir := testkit.MemoryDir(t)
	at := time.Unix(1e9, 0)
	for i := range manyNames {
		name := filepath.Join(dir, strconv.Itoa(i))
		if err := errors.Join(os.WriteFile(name, nil, 0o644), os.Chtimes(name, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A directory is listed whole, and a copy onto itself finds everything there already.
func TestManyNames(t *testing.T) {
	t.Parallel()
	dir := manyFiles(t)
	env := openUnix(t, nil)
	entries, err := env.FS(dir).ReadDir(".")
	if err != nil || len(entries) != manyNames {
		t.Errorf("ReadDir: %d names, %v", len(entries), err)
	}
	for name, copy := range map[string]func(*client.CopyOptions) error{
		"CopyIn":  func(o *client.CopyOptions) error { return env.FS(dir).CopyIn(dir, ".", o) },
		"CopyOut": func(o *client.CopyOptions) error { return env.FS(dir).CopyOut(".", dir, o) },
	} {
		w := watch()
		if err := copy(&w.CopyOptions); err != nil || w.last.Unchanged != manyNames || w.last.Files != 0 {
			t.Errorf("%s: %+v, %v", name, w.last, err)
		}
	}
}

// pageServer lists a directory of FIFOs in pages.
func pageServer(names, page int) *fileServer {
	return &fileServer{hold: func(c *fakeConn, m fakeMessage) bool {
		if m.Method != protocol.MethodReadDirectory {
			return false
		}
		first, _ := strconv.Atoi(m.Params.After)
		var entries []object
		for i := first; i < min(first+page, names); i++ {
			entries = append(entries, entry(fmt.Sprintf("%07d", i), "fifo", 0))
		}
		answer := object{"entries": entries}
		if first+page < names {
			answer["truncated"], answer["next"] = true, strconv.Itoa(first+page)
		}
		c.reply(m, answer)
		return true
	}}
}

// A copy passes through all pages of a large directory.
func TestCopyOutOfManyNames(t *testing.T) {
	t.Parallel()
	const names = 20_000
	w := watch()
	err := newFake(t, pageServer(names, 3000).serve).dial(nil).FS("/src").CopyOut(".", filepath.Join(t.TempDir(), "target"), &w.CopyOptions)
	if err != nil || w.last.LeftOut != names {
		t.Errorf("%+v, %v", w.last, err)
	}
}

// A copy ends when the pages of a listing do not follow each other, and so may have no end.
func TestCopyOutOfEndlessPages(t *testing.T) {
	t.Parallel()
	server := &fileServer{hold: func(c *fakeConn, m fakeMessage) bool {
		if m.Method == protocol.MethodReadDirectory {
			c.reply(m, object{"entries": []object{entry("b", "fifo", 0), entry("a", "fifo", 0)}, "truncated": true, "next": m.Params.After + "x"})
		}
		return m.Method == protocol.MethodReadDirectory
	}}
	err := newFake(t, server.serve).dial(nil).FS("/src").CopyOut(".", filepath.Join(t.TempDir(), "target"), nil)
	if err == nil || !strings.Contains(err.Error(), "the pages are not in the order of the names") {
		t.Errorf("CopyOut: %v", err)
	}
}

// ReadDir returns as much as a program may hold, and no page that comes again.
func TestReadDirOfEndless(t *testing.T) {
	t.Parallel()
	const page = 1 << 16
	entries := strings.TrimSuffix(strings.Repeat(`{"fileName":"a"},`, page), ",")
	next := 0
	endless := &fileServer{hold: func(c *fakeConn, m fakeMessage) bool {
		if m.Method == protocol.MethodReadDirectory {
			next++
			c.raw(fmt.Sprintf(`{"id":%s,"result":{"entries":[%s],"truncated":true,"next":"%d"}}`, m.ID, entries, next))
		}
		return m.Method == protocol.MethodReadDirectory
	}}
	env := newFake(t, endless.serve).dial(nil)
	if entries, err := env.FS("/src").ReadDir("."); !errors.Is(err, client.ErrTruncated) || len(entries) != 4*page {
		t.Errorf("%d names, %v", len(entries), err)
	}
	same := &fileServer{hold: func(c *fakeConn, m fakeMessage) bool {
		if m.Method == protocol.MethodReadDirectory {
			c.reply(m, object{"entries": []object{entry("a", "fifo", 0)}, "truncated": true, "next": "a"})
		}
		return m.Method == protocol.MethodReadDirectory
	}}
	env = newFake(t, same.serve).dial(nil)
	if _, err := env.FS("/src").ReadDir("."); err == nil || !strings.Contains(err.Error(), "the next page is the same one") {
		t.Errorf("ReadDir: %v", err)
	}
}

// Names that are too long to exist fill no memory, however many pages have them.
func TestListingsOfLongNames(t *testing.T) {
	t.Parallel()
	if testkit.RaceEnabled {
		t.Skip("with the race detector it takes minutes to decode names of so many bytes")
	}
	const pages = 12
	name := strings.Repeat("x", 8<<20)
	asked := 0
	server := &fileServer{hold: func(c *fakeConn, m fakeMessage) bool {
		if m.Method != protocol.MethodReadDirectory {
			return false
		}
		asked++
		c.raw(fmt.Sprintf(`{"id":%s,"result":{"entries":[{"fileName":"%s"}],"truncated":%t,"next":"%d"}}`, m.ID, name, asked < pages, asked))
		return true
	}}
	_, err := newFake(t, server.serve).dial(nil).FS("/src").ReadDir(".")
	if asked == 0 || asked >= pages {
		t.Errorf("ReadDir asks for %d pages, %v", asked, err)
	}
}
