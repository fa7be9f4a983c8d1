package server_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
	"execserver/server"
)

// TestChangesOfALostConnection loses a connection while a file change waits for a program that has a
// lease on the file, and others wait for it. None of them is made, and the memory of all is free,
// although the lease goes on.
func TestChangesOfALostConnection(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"leased", "open"} {
		if err := os.WriteFile(dir+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(dir + "/leased")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// The kernel awaits the end of the lease when the file is opened for writing.
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Skipf("no lease on this file system: %v", err)
	}
	srv := server.New(&server.Options{Auth: server.Unauthenticated})
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	taken := server.LimitMessageMemory(srv, 64<<20)
	c := newCaller(t, listenWebSocket(t, srv), "")
	c.result("fs/open", params{"handleId": "h", "path": dir + "/open", "mode": "update"}, new(struct{}))
	c.send("fs/writeFile", params{"path": dir + "/leased", "dataBase64": "bmV3"})
	for range 2 { // the second also waits for the first
		c.send("fs/writeBlock", params{"handleId": "h", "offset": 0, "chunk": "bmV3"})
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(testkit.Stacks(), "filesystem.(*writer).rewrite(") {
			return errors.New("the write has not begun")
		}
		return nil
	})
	for i := range 3 {
		c.send("fs/writeFile", params{"path": fmt.Sprintf("%s/%d", dir, i), "dataBase64": strings.Repeat("bmV3", 1<<20)})
	}
	c.result("environment/status", params{}, new(struct{})) // everything before it has been read
	if taken() == 0 {
		t.Fatal("the messages take no memory")
	}
	c.Drop()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := taken(); n > 0 {
			return fmt.Errorf("%d bytes are taken by nobody", n)
		}
		return nil
	})
	if fd, err := unix.Open(dir+"/leased", unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != unix.EWOULDBLOCK {
		t.Errorf("the change has waited for the end of the lease: %d, %v", fd, err)
	}
	for i := range 3 {
		if _, err := os.Stat(fmt.Sprintf("%s/%d", dir, i)); err == nil {
			t.Errorf("change %d was made after the connection had ended", i)
		}
	}
	if content, err := os.ReadFile(dir + "/open"); len(content) > 0 || err != nil {
		t.Errorf("blocks were written after the connection had ended: %q, %v", content, err)
	}
}
