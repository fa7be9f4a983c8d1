package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestChangesInPlaceAreFinished ends the connection or the server while the server writes
// a file with two names in place. The server must finish the write, because nobody would
// learn that the file is torn.
func TestChangesInPlaceAreFinished(t *testing.T) {
	t.Parallel()
	const size = 17 << 20 // three writes of the server
	old, content := bytes.Repeat([]byte("o"), size), bytes.Repeat([]byte("n"), size)
	ends := map[string]func(t *testing.T, p *program, c *wireClient){
		"connection": func(_ *testing.T, _ *program, c *wireClient) { c.Drop() },
		"SIGTERM": func(t *testing.T, p *program, _ *wireClient) {
			if err := p.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if _, err := p.wait(testkit.Patience); err != nil {
				t.Fatal(err)
			}
		},
	}
	for _, way := range []struct {
		name, listen string
		confined     bool
	}{
		{"WebSocket", "ws://127.0.0.1:0", false},
		{"stdio", "stdio", false},
		{"confined", "ws://127.0.0.1:0", true},
	} {
		for _, method := range []string{"fs/writeFile", "fs/copy"} {
			for end, goAway := range ends {
				t.Run(way.name+" "+method[3:]+" "+end, func(t *testing.T) {
					dir := t.TempDir()
					file, source := dir+"/file", dir+"/source"
					for path, data := range map[string][]byte{file: old, source: content} {
						if err := os.WriteFile(path, data, 0o644); err != nil {
							t.Fatal(err)
						}
					}
					if err := os.Link(file, dir+"/link"); err != nil {
						t.Fatal(err)
					}
					p := newServer(t, "--listen", way.listen)
					c := connect(t, p)
					c.handshake("")
					params := object{"path": file, "dataBase64": base64.StdEncoding.EncodeToString(content)}
					if method == "fs/copy" {
						params = object{"sourcePath": source, "destinationPath": file, "recursive": false}
					}
					if way.confined {
						params["sandbox"] = writable(dir)
						if !confines(c, dir) {
							t.Skip("there is no sandbox here")
						}
					}
					if _, err := c.Begin(method, params); err != nil {
						t.Fatal(err)
					}
					awaitFirstByte(t, file, 'n')
					goAway(t, p, c)
					testkit.WaitFor(t, testkit.Patience, func() error {
						got, err := os.ReadFile(file)
						if err == nil && !bytes.Equal(got, content) {
							err = fmt.Errorf("the file holds %d MiB of its new content and %d MiB of the old",
								bytes.Count(got, []byte("n"))>>20, bytes.Count(got, []byte("o"))>>20)
						}
						return err
					})
				})
			}
		}
	}
}

// writable returns a sandbox in which a command may read everything and write a
// directory.
func writable(dir string) object {
	root := object{"path": object{"type": "special", "value": object{"kind": "root"}}, "access": "read"}
	write := object{"path": object{"type": "path", "path": "file://" + dir}, "access": "write"}
	return object{
		"permissions": object{
			"type": "managed", "network": "restricted",
			"file_system": object{"type": "restricted", "entries": []object{root, write}},
		},
		"cwd": "file://" + dir, "workspaceRoots": []string{"file://" + dir}, "windowsSandboxLevel": "disabled",
	}
}

// confines reports whether a server can confine a file request.
func confines(c *wireClient, dir string) bool {
	return c.try("fs/createDirectory", object{"path": dir + "/probe", "sandbox": writable(dir)}, nil) == nil
}

// awaitFirstByte waits until a file begins with a byte.
func awaitFirstByte(t *testing.T, path string, want byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 1)
	for deadline := time.Now().Add(testkit.Patience); got[0] != want; runtime.Gosched() {
		if _, err := f.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the file is not written")
		}
	}
}
