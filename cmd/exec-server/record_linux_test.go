package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/recording"
	"execserver/internal/testkit"
)

// recorded returns the names of the recordings in a directory.
func recorded(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.cast*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestRecord records what clients start. A confined command reaches no recording. A server
// that is killed leaves recordings that the next one makes whole.
func TestRecord(t *testing.T) {
	t.Parallel()
	dir, ws := filepath.Join(t.TempDir(), "recordings"), t.TempDir()
	p := newServer(t, "--without", "supervisor", "--record", dir)
	c := connect(t, p)
	c.handshake("")
	c.start(object{"processId": "seen", "argv": []string{"/bin/sh", "-c", "echo shown; exit 4"}, "cwd": "file:///", "env": object{}, "tty": false})
	c.exited("seen")
	testkit.WaitFor(t, testkit.Patience, func() error {
		if names := recorded(t, dir); len(names) != 1 || !strings.HasSuffix(names[0], ".cast") {
			return fmt.Errorf("the recordings are %q", names)
		}
		return nil
	})
	content, err := os.ReadFile(recorded(t, dir)[0])
	if err != nil || !bytes.Contains(content, []byte(`"o", "shown\r\n"]`)) || !bytes.HasSuffix(content, []byte(`"m", "exit status 4"]`+"\n")) {
		t.Errorf("the recording is %s, %v", content, err)
	}
	if confines(c, ws) {
		c.start(object{
			"processId": "nosy", "argv": []string{"/bin/sh", "-c", "ls " + dir + " && cat " + dir + "/*.cast"}, "cwd": "file://" + ws,
			"env": object{"PATH": "/usr/bin:/bin"}, "tty": false, "sandbox": writable(ws),
		})
		if code := c.exited("nosy").ExitCode; code == 0 {
			t.Error("a confined command reads the recordings")
		}
		if err := c.try("fs/readFile", object{"path": "file://" + recorded(t, dir)[0], "sandbox": writable(ws)}, nil); err == nil {
			t.Error("a confined request reads a recording")
		}
	} else {
		t.Log("there is no sandbox here, so nothing tries to read the recordings in one")
	}
	c.start(object{"processId": "cut", "argv": []string{"/bin/sh", "-c", "echo before; exec sleep 1000"}, "cwd": "file:///", "env": object{}, "tty": true})
	live := ""
	testkit.WaitFor(t, testkit.Patience, func() error {
		for _, name := range recorded(t, dir) {
			if content, _ := os.ReadFile(name); bytes.Contains(content, []byte(`"before\r\n"`)) {
				live = name
				return nil
			}
		}
		return errors.New("the recording does not begin")
	})
	p.kill()
	file, err := os.OpenFile(live, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`[0.1, "o", "tor`); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // children of the server may have the lock for a moment
		next, err := recording.Open(dir, nil)
		next.Close()
		return err
	})
	content, err = os.ReadFile(strings.TrimSuffix(live, ".live"))
	if err != nil || !bytes.HasSuffix(content, []byte("\"before\\r\\n\"]\n")) {
		t.Errorf("made whole, the recording is %s, %v", content, err)
	}
}
