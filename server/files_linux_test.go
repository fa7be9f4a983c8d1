package server_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// isolateMounts keeps what others mount from telling a fs/watchMissing that
// something may have changed.
func isolateMounts() { testkit.IsolateMounts() }

// mountDead mounts a file system that does not answer until revive is called;
// then all that waits for it fails.
func mountDead(t *testing.T) (dir string, revive func()) {
	t.Helper()
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no file system that does not answer here: %v", err)
	}
	closed := false
	revive = func() {
		if !closed {
			closed = true
			_ = unix.Close(fuse)
		}
	}
	t.Cleanup(revive)
	dir = testkit.Mount(t, "dead", "fuse", fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse))
	return dir, revive
}

// unanswered checks that no request has been answered.
func unanswered(t *testing.T, what string, requests []<-chan answer) {
	t.Helper()
	for i, arrives := range requests {
		select {
		case m := <-arrives:
			t.Errorf("%s %d was answered: %+v", what, i, m)
		default:
		}
	}
}

// TestNothingWaitsForADeadFileSystem has all methods wait for a file system that
// does not answer. Nothing else does.
func TestNothingWaitsForADeadFileSystem(t *testing.T) {
	t.Parallel() // it mostly waits
	if !testkit.InMountNamespace(t) {
		return
	}
	live := t.TempDir()
	srv := server.New(nil)
	dead, revive := mountDead(t)
	p := connectFiles(t, srv)
	var stuck []<-chan answer
	send := func(method string, params fileParams) { stuck = append(stuck, p.send(method, params)) }
	options := fileParams{"maxDepth": 1, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": true}
	for i := range 150 { // more than there are places
		file := fmt.Sprint(dead, "/", i)
		send("fs/getMetadata", fileParams{"path": file})
		send("fs/readFile", fileParams{"path": file})
	}
	for i := range 50 {
		send("fs/walk", fileParams{"path": fmt.Sprint(dead, "/", i), "options": options})
		send("fs/readDirectory", fileParams{"path": dead})
	}
	for i := range 50 {
		send("fs/writeFile", writeParams(fmt.Sprint(dead, "/f", i), "x"))
	}
	send("fs/createDirectory", fileParams{"path": dead + "/d"})
	send("fs/copy", fileParams{"sourcePath": t.TempDir(), "destinationPath": dead + "/copy", "recursive": true})
	send("fs/open", fileParams{"handleId": "dead", "path": dead + "/f"})
	send("fs/readBlock", fileParams{"handleId": "dead", "offset": 0, "len": 1})
	send("fs/open", fileParams{"handleId": "dead writer", "path": dead + "/f", "mode": "replace"})
	send("fs/watchMissing", fileParams{"watchId": 1, "missing": []string{dead + "/f"}})
	send("fs/watch", fileParams{"watchId": "dead", "path": dead})
	send("fs/remove", fileParams{"path": dead + "/f"})

	start := time.Now()
	stalled := testkit.Stalled(func() {
		p.call("fs/writeFile", writeParams(live+"/f", "x"), nil)
		p.call("fs/getMetadata", fileParams{"path": live}, nil)
		p.call("fs/readDirectory", fileParams{"path": live}, nil)
		p.call("fs/rename", fileParams{"sourcePath": live + "/f", "destinationPath": live + "/g"}, nil)
		p.call("fs/open", fileParams{"handleId": "live", "path": live + "/h", "mode": "replace"}, nil)
		p.call("fs/writeBlock", fileParams{"handleId": "live", "offset": 0, "chunk": "aGk="}, nil)
		p.call("fs/close", fileParams{"handleId": "live"}, nil)
		p.call("fs/watch", fileParams{"watchId": "live", "path": live}, nil)
		var missing struct{ Watching bool }
		p.call("fs/watchMissing", fileParams{"watchId": 2, "missing": []string{live + "/none"}}, &missing)
		if !missing.Watching {
			t.Error("fs/watchMissing does not watch")
		}
		p.call("environment/status", nil, nil)
	})
	took := time.Since(start) - stalled
	t.Logf("answered in %v", took)
	if took > 10*time.Second {
		t.Errorf("others waited for %v", took)
	}
	unanswered(t, "request", stuck)

	// Neither the end of the connection nor that of the server waits.
	start = time.Now()
	stalled = testkit.Stalled(func() {
		p.close()
		<-p.served
		testkit.Shutdown(t, srv)
	})
	if took := time.Since(start) - stalled; took > 15*time.Second {
		t.Errorf("the end took %v", took)
	}
	revive() // and what was stuck goes away
}

// TestChangesOfADeadFileSystem keeps the order of changes of the same paths,
// however long one takes.
func TestChangesOfADeadFileSystem(t *testing.T) {
	t.Parallel() // it mostly waits
	if !testkit.InMountNamespace(t) {
		return
	}
	live := t.TempDir()
	p := connectFiles(t, newFileServer(t, nil))
	dead, revive := mountDead(t)
	putFile(t, live+"/d/f", "old")
	slow := p.send("fs/copy", fileParams{"sourcePath": dead + "/f", "destinationPath": live + "/d/f", "recursive": false})
	var behind []<-chan answer
	for _, path := range []string{"/d/f", "/d", "/d/f/below"} {
		behind = append(behind, p.send("fs/remove", fileParams{"path": live + path}))
	}
	behind = append(behind, p.send("fs/rename", fileParams{"sourcePath": live + "/x", "destinationPath": live + "/d/f"}))
	p.call("fs/writeFile", writeParams(live+"/other", "x"), nil)
	p.call("fs/writeFile", writeParams(live+"/d2", "x"), nil) // not below d
	unanswered(t, "change", behind)
	if got := contentOf(t, live+"/d/f"); got != "old" {
		t.Errorf("the file holds %q", got)
	}
	revive()
	if err := p.take(slow, nil); err == nil {
		t.Error("a copy from a dead file system succeeded")
	}
	for i, want := range []bool{true, true, true, false} { // there is nothing to rename
		if err := p.take(behind[i], nil); (err == nil) != want {
			t.Errorf("change %d: %v", i, err)
		}
	}
	if _, err := os.Stat(live + "/d"); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
}

// TestHandlesKeepTheOrderOfTheirPaths writes a file through a handle, in a
// directory that is removed and made again by changes that take long. The handle
// waits for them, whatever its id was asked to open before.
func TestHandlesKeepTheOrderOfTheirPaths(t *testing.T) {
	t.Parallel() // it mostly waits
	if !testkit.InMountNamespace(t) {
		return
	}
	elsewhere := t.TempDir()
	for name, before := range map[string]func(p *fileClient){
		"after a failed open of the id": func(p *fileClient) {
			if err := p.try("fs/open", fileParams{"handleId": "h", "path": elsewhere + "/none/f", "mode": "replace"}, nil); err == nil {
				t.Error("a file was made in a directory that does not exist")
			}
		},
		"after an open that closed itself": func(p *fileClient) {
			p.call("fs/open", fileParams{"handleId": "h", "path": elsewhere + "/f", "mode": "replace"}, nil)
			if err := p.try("fs/readBlock", fileParams{"handleId": "h", "offset": 0, "len": 1}, nil); err == nil {
				t.Error("a handle that writes was read")
			}
		},
		"after many failed opens": func(p *fileClient) {
			for i := range 5 * filesystem.MaxHandles {
				_ = p.try("fs/open", fileParams{"handleId": fmt.Sprint(i), "path": elsewhere + "/none/f", "mode": "replace"}, nil)
			}
		},
		"after an open to read": func(p *fileClient) {
			p.call("fs/open", fileParams{"handleId": "h", "path": putFile(t, elsewhere+"/read", "")}, nil)
			p.call("fs/close", fileParams{"handleId": "h"}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			live := t.TempDir()
			p := connectFiles(t, newFileServer(t, nil))
			before(p)
			dead, revive := mountDead(t)
			putFile(t, live+"/d/f", "old")
			slow := p.send("fs/copy", fileParams{"sourcePath": dead + "/f", "destinationPath": live + "/d/f", "recursive": false})
			var changes []<-chan answer
			send := func(method string, params fileParams) { changes = append(changes, p.send(method, params)) }
			send("fs/remove", fileParams{"path": live + "/d"})
			send("fs/createDirectory", fileParams{"path": live + "/d"})
			send("fs/open", fileParams{"handleId": "h", "path": live + "/d/new", "mode": "replace"})
			send("fs/writeBlock", fileParams{"handleId": "h", "offset": 0, "chunk": "aGk="})
			send("fs/close", fileParams{"handleId": "h"})
			// Answered when the copy has been given up on, and overtaken.
			p.call("fs/writeFile", writeParams(elsewhere+"/other", "x"), nil)
			p.call("fs/writeFile", writeParams(elsewhere+"/another", "x"), nil)
			revive()
			if err := p.take(slow, nil); err == nil {
				t.Error("a copy from a dead file system succeeded")
			}
			for i, arrives := range changes {
				if err := p.take(arrives, nil); err != nil {
					t.Errorf("change %d: %v", i, err)
				}
			}
			if got := contentOf(t, live+"/d/new"); got != "hi" {
				t.Errorf("the file holds %q", got)
			}
		})
	}
}

// TestUnknownHandlesWaitForEverything writes to a handle that does not exist,
// whose path nobody can tell: every change that came before is done first.
func TestUnknownHandlesWaitForEverything(t *testing.T) {
	t.Parallel() // it mostly waits
	if !testkit.InMountNamespace(t) {
		return
	}
	live := t.TempDir()
	p := connectFiles(t, newFileServer(t, nil))
	dead, revive := mountDead(t)
	slow := p.send("fs/copy", fileParams{"sourcePath": dead + "/f", "destinationPath": live + "/f", "recursive": false})
	p.call("fs/writeFile", writeParams(live+"/overtakes", "x"), nil)
	unknown := p.send("fs/writeBlock", fileParams{"handleId": "h", "offset": 0, "chunk": "aGk="})
	behind := p.send("fs/writeFile", writeParams(live+"/g", "x")) // which may be the same file
	for range 20 {
		p.call("fs/getMetadata", fileParams{"path": live}, nil)
	}
	unanswered(t, "change", []<-chan answer{unknown, behind})
	revive()
	if err := p.take(slow, nil); err == nil {
		t.Error("a copy from a dead file system succeeded")
	}
	if err := p.take(unknown, nil); err == nil || err.Error() != "unknown file handle `h`" {
		t.Errorf("a block for an unknown handle: %v", err)
	}
	if err := p.take(behind, nil); err != nil {
		t.Error(err)
	}
}

// TestTooManyFileOperations has as many operations wait as there may be.
func TestTooManyFileOperations(t *testing.T) {
	if !testkit.InMountNamespace(t) {
		return
	}
	const limit = 10
	srv := newFileServer(t, nil)
	server.LimitFileOperations(srv, limit)
	p := connectFiles(t, srv)
	dead, revive := mountDead(t)
	answers := make(chan error, 2*limit)
	for i := range 2 * limit {
		arrives := p.send("fs/getMetadata", fileParams{"path": fmt.Sprint(dead, "/", i)})
		go func() { answers <- p.take(arrives, nil) }()
	}
	for range limit {
		err := <-answers
		if want := "the server has its limit of 10 file operations under way; perhaps a file system does not answer"; err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	revive()
	for range limit {
		if err := <-answers; err == nil || !strings.Contains(err.Error(), "os error") {
			t.Errorf("error %v", err)
		}
	}
	p.call("fs/getMetadata", fileParams{"path": t.TempDir()}, nil)
}

// TestFullDisk writes more than a file system has room for.
func TestFullDisk(t *testing.T) {
	if !testkit.InMountNamespace(t) {
		return
	}
	dir := testkit.Mount(t, "tmpfs", "tmpfs", "size=1m")
	p := connectFiles(t, newFileServer(t, nil))
	const full = "No space left on device (os error 28)"
	old := strings.Repeat("old ", 100_000)
	big := strings.Repeat("x", 2<<20)
	putFile(t, dir+"/f", old)
	p.refused("fs/writeFile", writeParams(dir+"/f", big), protocol.CodeInternal, full+"; the file keeps its old content")
	// In place, too.
	if err := os.Link(dir+"/f", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	p.refused("fs/writeFile", writeParams(dir+"/f", big), protocol.CodeInternal, full+"; the file keeps its old content")
	p.refused("fs/copy", fileParams{"sourcePath": putFile(t, t.TempDir()+"/big", big), "destinationPath": dir + "/f", "recursive": false},
		protocol.CodeInternal, full+"; the file keeps its old content")
	p.refused("fs/writeFile", writeParams(dir+"/new", big), protocol.CodeInternal, full)
	if got := contentOf(t, dir+"/f"); got != old {
		t.Errorf("the file has %d bytes, %d before", len(got), len(old))
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
	p.call("fs/open", fileParams{"handleId": "h", "path": dir + "/blocks", "mode": "replace"}, nil)
	block := fileParams{"handleId": "h", "offset": 0, "chunk": writeParams("", big[:1<<20])["dataBase64"]}
	p.refused("fs/writeBlock", block, protocol.CodeInternal, full)
	p.call("fs/close", fileParams{"handleId": "h"}, nil)
}

// TestWriteKeepsTheFile writes files that are more than one name.
func TestWriteKeepsTheFile(t *testing.T) {
	if !testkit.InMountNamespace(t) {
		return
	}
	p := connectFiles(t, newFileServer(t, nil))
	inode := func(path string) uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	check := func(what, path, other string, inPlace bool) {
		t.Helper()
		before := inode(path)
		p.call("fs/writeFile", writeParams(path, "new: "+what), nil)
		if got := contentOf(t, other); got != "new: "+what {
			t.Errorf("%s: the other name holds %q", what, got)
		}
		if inPlace && inode(path) != before {
			t.Errorf("%s: another file than before", what)
		}
	}
	dir := t.TempDir()
	putFile(t, dir+"/f", "old")
	if err := os.Symlink("f", dir+"/l"); err != nil {
		t.Fatal(err)
	}
	check("symbolic link", dir+"/l", dir+"/f", false)
	if text, err := os.Readlink(dir + "/l"); err != nil || text != "f" {
		t.Errorf("the link leads to %q, %v", text, err)
	}
	if err := os.Link(dir+"/f", dir+"/g"); err != nil {
		t.Fatal(err)
	}
	check("hard link", dir+"/g", dir+"/f", true)
	putFile(t, dir+"/mounted", "below")
	if err := unix.Mount(putFile(t, dir+"/source", "old"), dir+"/mounted", "", unix.MS_BIND, ""); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	check("bind mount", dir+"/mounted", dir+"/source", true)
	if err := unix.Unmount(dir+"/mounted", unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
	if got := contentOf(t, dir+"/mounted"); got != "below" {
		t.Errorf("below the mount point: %q", got)
	}
}
