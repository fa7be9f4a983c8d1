package server_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
	testkit.System(t, testkit.Root)
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

// TestSystemNothingWaitsForADeadFileSystem fills one connection with requests for a file system
// that does not answer. Its other requests are served, and all of other connections.
func TestSystemNothingWaitsForADeadFileSystem(t *testing.T) {
	t.Parallel()
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

	p.call("environment/status", nil, nil)
	p.call("process/start", fileParams{
		"processId": "p", "argv": []string{"/bin/sh", "-c", "echo hi"}, "cwd": live, "env": fileParams{}, "tty": false,
	}, nil)
	p.call("process/wait", fileParams{"processId": "p"}, nil)
	p.call("process/read", fileParams{"processId": "p"}, nil)
	p.call("process/list", nil, nil)
	p.call("session/list", nil, nil)

	other := connectFiles(t, srv)
	other.call("fs/writeFile", writeParams(live+"/f", "x"), nil)
	other.call("fs/getMetadata", fileParams{"path": live}, nil)
	other.call("fs/readDirectory", fileParams{"path": live}, nil)
	other.call("fs/rename", fileParams{"sourcePath": live + "/f", "destinationPath": live + "/g"}, nil)
	other.call("fs/open", fileParams{"handleId": "live", "path": live + "/h", "mode": "replace"}, nil)
	other.call("fs/writeBlock", fileParams{"handleId": "live", "offset": 0, "chunk": "aGk="}, nil)
	other.call("fs/close", fileParams{"handleId": "live"}, nil)
	other.call("fs/watch", fileParams{"watchId": "live", "path": live}, nil)
	var missing struct{ Watching bool }
	other.call("fs/watchMissing", fileParams{"watchId": 2, "missing": []string{live + "/none"}}, &missing)
	if !missing.Watching {
		t.Error("fs/watchMissing does not watch")
	}
	unanswered(t, "request", stuck)

	// Neither the end of the connection nor that of the server waits.
	p.close()
	<-p.served
	testkit.Shutdown(t, srv)
	revive() // and what was stuck goes away
}

// TestSystemChangesWaitForADeadFileSystem has changes wait for one of a file system that does not
// answer, with those through a handle in a directory that is removed and made again.
// Requests that only read do not wait.
func TestSystemChangesWaitForADeadFileSystem(t *testing.T) {
	t.Parallel()
	if !testkit.InMountNamespace(t) {
		return
	}
	live := t.TempDir()
	p := connectFiles(t, newFileServer(t, nil))
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
	send("fs/copy", fileParams{"sourcePath": live + "/d/new", "destinationPath": live + "/copy", "recursive": false})
	unknown := p.send("fs/writeBlock", fileParams{"handleId": "none", "offset": 0, "chunk": "aGk="})
	p.call("fs/getMetadata", fileParams{"path": live}, nil)
	unanswered(t, "change", append(changes, slow, unknown))
	if got := contentOf(t, live+"/d/f"); got != "old" {
		t.Errorf("the file holds %q", got)
	}
	revive()
	if err := p.take(slow, nil); err == nil {
		t.Error("a copy from a dead file system succeeded")
	}
	for i, arrives := range changes {
		if err := p.take(arrives, nil); err != nil {
			t.Errorf("change %d: %v", i, err)
		}
	}
	if err := p.take(unknown, nil); err == nil || err.Error() != "unknown file handle `none`" {
		t.Errorf("a block for an unknown handle: %v", err)
	}
	if got := contentOf(t, live+"/copy"); got != "hi" {
		t.Errorf("the copy holds %q", got)
	}
}

// TestSystemChangesAcrossAResume loses the connection during a change, which goes on, and resumes
// the session. Its changes begin when that one is done: a client repeats a change whose answer it
// lost, and must not find later that the first attempt has overwritten what came afterwards.
func TestSystemChangesAcrossAResume(t *testing.T) {
	t.Parallel()
	if !testkit.InMountNamespace(t) {
		return
	}
	live := t.TempDir()
	srv := newFileServer(t, nil)
	dead, revive := mountDead(t)
	lost := connectFiles(t, srv)
	lost.send("fs/copy", fileParams{"sourcePath": dead + "/f", "destinationPath": live + "/f", "recursive": false})
	lost.send("fs/writeFile", writeParams(live+"/waiting", "dropped"))
	lost.call("fs/getMetadata", fileParams{"path": live}, nil)
	lost.close()
	p := resumeFiles(t, srv, &lost.SessionID)
	repeated := p.send("fs/writeFile", writeParams(live+"/f", "new"))
	later := p.send("fs/remove", fileParams{"path": live + "/none", "force": true})
	for range 100 { // as many answers as it could need
		p.call("fs/getMetadata", fileParams{"path": live}, nil)
	}
	unanswered(t, "change", []<-chan answer{repeated, later})
	revive()
	if t.Failed() {
		return
	}
	for _, arrives := range []<-chan answer{repeated, later} {
		if err := p.take(arrives, nil); err != nil {
			t.Error(err)
		}
	}
	if got := contentOf(t, live+"/f"); got != "new" {
		t.Errorf("the file holds %q", got)
	}
	if _, err := os.Stat(live + "/waiting"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a change that waited when the connection ended was made: %v", err)
	}
}

// TestSystemTooManyFileOperations has as many operations wait as there may be.
func TestSystemTooManyFileOperations(t *testing.T) {
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
	const full = "no space left on device (os error 28)"
	old := strings.Repeat("old ", 100_000)
	big := strings.Repeat("x", 2<<20)
	putFile(t, dir+"/f", old)
	p.refused("fs/writeFile", writeParams(dir+"/f", big), protocol.CodeInternal, full+"; the file keeps its old content")
	// In place, too.
	if err := os.Link(dir+"/f", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	withMode := writeParams(dir+"/f", big)
	withMode["mode"] = 0o600
	p.refused("fs/writeFile", withMode, protocol.CodeInternal, full+"; the file keeps its old content")
	if info, err := os.Stat(dir + "/f"); err != nil || info.Mode() != 0o644 {
		t.Errorf("the file has another mode: %v, %v", info, err)
	}
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

// TestSystemWriteKeepsTheFile writes files that are more than one name.
func TestSystemWriteKeepsTheFile(t *testing.T) {
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
	testkit.System(t, testkit.Root) // who alone can mount
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
