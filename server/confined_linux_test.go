package server_test

import (
	"encoding/base64"
	"fmt"
	"net"
	"strings"
	"testing"

	"execserver/internal/extension"
	"execserver/internal/sandbox"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
	"execserver/transport"
)

// newConfiningServer makes a server with sandboxes, and skips the test where there
// are none.
func newConfiningServer(t *testing.T) *server.Server {
	t.Helper()
	engine := sandbox.New(&sandbox.Options{StateDir: t.TempDir()})
	t.Cleanup(engine.Close)
	return newFileServer(t, &server.Options{Extensions: &extension.Options{Sandbox: engine}})
}

// confined waits until so many file operations have had a place in a sandbox.
func confined(t *testing.T, srv *server.Server, n uint64) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if had := srv.Stats().Confined[server.ConfinedFiles]; had < n {
			return fmt.Errorf("%d file operations have had a place, want %d", had, n)
		}
		return nil
	})
}

// hiding is a sandbox that lets everything be read but a directory.
func hiding(dir string) fileParams {
	at := func(access string, path fileParams) fileParams { return fileParams{"path": path, "access": access} }
	return fileParams{
		"permissions": fileParams{"type": "managed", "network": "restricted", "file_system": fileParams{
			"type": "restricted", "entries": []fileParams{
				at("read", fileParams{"type": "special", "value": fileParams{"kind": "root"}}),
				at("deny", fileParams{"type": "path", "path": "file://" + dir}),
			},
		}},
		"cwd": "file:///", "workspaceRoots": []string{}, "windowsSandboxLevel": "disabled",
	}
}

// TestConfinedReadsReserve reads many large files in sandboxes at the same time.
// Their content is not in memory at the same time.
func TestConfinedReadsReserve(t *testing.T) {
	reads, size := 3, 4<<20
	if quiet {
		reads, size = 12, 40<<20
	}
	dir, hidden := t.TempDir(), t.TempDir()
	file := putFile(t, dir+"/f", strings.Repeat("x", size))
	srv := newConfiningServer(t)
	p := connectFiles(t, srv)
	params := fileParams{"path": file, "sandbox": hiding(hidden)}
	if err := p.try("fs/getMetadata", params, nil); err != nil {
		t.Skipf("no sandbox here: %v", err)
	}
	// A client that keeps nothing.
	ours, theirs := net.Pipe()
	near, far := transport.NewLines("lines", ours, ours, ours.Close, 0), transport.NewLines("lines", theirs, theirs, theirs.Close, 0)
	served := make(chan error, 1)
	go func() { served <- srv.ServeConn(far) }()
	send := func(id int, method string, params any) {
		text, err := protocol.AppendRequest(nil, protocol.NumberID(int64(id)), method, params)
		if err == nil {
			err = near.Write(text)
		}
		if err != nil {
			t.Error(err)
		}
	}
	stop := holdMemory(t)
	go func() {
		send(0, "initialize", fileParams{"clientName": "test"})
		if err := near.Write([]byte(`{"method":"initialized"}`)); err != nil {
			t.Error(err)
		}
		for i := range reads {
			send(i+1, "fs/readFile", params)
		}
	}()
	var message []byte
	for i := range reads + 1 {
		if i == 1 {
			for range 30 { // nobody takes an answer meanwhile
				p.call("fs/getMetadata", params, nil)
			}
		}
		var err error
		if message, err = near.Read(message); err != nil {
			t.Fatal(err)
		}
		if i > 0 && len(message) < base64.StdEncoding.EncodedLen(size) {
			t.Errorf("%.200s", message)
		}
	}
	stop()
	_ = near.Close(transport.Reason{})
	<-served
}

// TestSystemHangingConfinedOperations has more operations in sandboxes hang than a
// connection may have. It is told so, and others notice nothing.
func TestSystemHangingConfinedOperations(t *testing.T) {
	t.Parallel() // it mostly waits
	if !testkit.InMountNamespace(t) {
		return
	}
	live, hidden := t.TempDir(), t.TempDir()
	srv := newConfiningServer(t)
	p, other := connectFiles(t, srv), connectFiles(t, srv)
	params := fileParams{"path": live, "sandbox": hiding(hidden)}
	if err := p.try("fs/getMetadata", params, nil); err != nil {
		t.Skipf("no sandbox here: %v", err)
	}
	dead, revive := mountDead(t)
	var stuck []<-chan answer
	for range 40 {
		stuck = append(stuck, p.send("fs/getMetadata", fileParams{"path": dead + "/f", "sandbox": hiding(hidden)}))
	}
	confined(t, srv, 1+8) // what is sent later may overtake those that have no place yet
	for range 5 {
		other.call("fs/getMetadata", params, nil)
	}
	if err := p.try("fs/getMetadata", params, nil); err == nil ||
		!strings.HasPrefix(err.Error(), "this connection has its limit of 8 file operations in sandboxes under way") {
		t.Errorf("one operation more: %v", err)
	}
	revive()
	for _, arrives := range stuck {
		if err := p.take(arrives, nil); err == nil {
			t.Error("a file of a dead file system was found")
		}
	}
	p.call("fs/getMetadata", params, nil)
}
