package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecretsOfReload makes the tokens file name another secret while the server runs.
// Commands that start later do not see it, even if the server cannot use the new file.
func TestSecretsOfReload(t *testing.T) {
	t.Parallel()
	dir, ws := t.TempDir(), t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	ann := fmt.Sprintf("[[token]]\nname = \"ann\"\nscope = [\"full\"]\nsha256 = %q\n", digestOf("the token of ann"))
	entry := func(name string) string {
		return fmt.Sprintf("[[token]]\nname = %q\nscope = [\"full\"]\nsecret = %q\n", name, filepath.Join(dir, name, "secret"))
	}
	for _, name := range []string{"first", "second"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"secret", "other"} { // so the directory is not hidden as well
			if err := os.WriteFile(filepath.Join(dir, name, file), []byte(secret), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	replaceFile(t, tokens, ann+entry("first"))
	p := newServer(t, "--tokens", tokens)
	c := as(t, p, "the token of ann", nil)
	c.handshake("")
	if !confines(c, ws) {
		t.Skip("there is no sandbox here")
	}
	commands := 0
	expect := func(when string, shown map[string]bool) {
		t.Helper()
		for name, want := range shown {
			file := filepath.Join(dir, name)
			commands++
			id := fmt.Sprint("p", commands)
			c.start(object{
				"processId": id, "argv": []string{"/bin/cat", file}, "cwd": "file://" + ws, "env": object{}, "tty": false, "sandbox": writable(ws),
			})
			code := c.exited(id).ExitCode
			if got := code == 0; got != want {
				t.Errorf("%s, a command that reads %s ends with %v", when, name, code)
			}
			if err := c.try("fs/readFile", object{"path": "file://" + file, "sandbox": writable(ws)}, nil); (err == nil) != want {
				t.Errorf("%s, to read %s is answered by %v", when, name, err)
			}
		}
	}
	expect("at first", map[string]bool{"first/secret": false, "first/other": true, "second/secret": true})
	replaceFile(t, tokens, ann+entry("first")+entry("second"))
	logged(t, p, "read the credentials again")
	hidden := map[string]bool{"first/secret": false, "second/secret": false, "second/other": true}
	expect("after a reload", hidden)
	replaceFile(t, tokens, ann+"[[token]\n")
	logged(t, p, "the previous credentials still apply")
	expect("after one that failed", hidden)
	for _, name := range []string{"first", "second"} {
		if n := strings.Count(p.stderr.text(), "file="+filepath.Join(dir, name, "secret")+"\n"); n != 1 {
			t.Errorf("the log names the %s secret %d times: %s", name, n, p.stderr.text())
		}
	}
}

// TestRotatedAuditLog puts older audit logs where a command may write. The command can
// neither read nor change them, nor the current log.
func TestRotatedAuditLog(t *testing.T) {
	t.Parallel()
	ws := t.TempDir()
	names := []string{"audit.log", "audit.log.1", "audit.log-20261123.gz"}
	for _, name := range append(names[1:], "audit.logic") {
		if err := os.WriteFile(filepath.Join(ws, name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := newServer(t, "--audit-log", filepath.Join(ws, names[0]))
	c := as(t, p, "", nil)
	c.handshake("")
	if !confines(c, ws) {
		t.Skip("there is no sandbox here")
	}
	reaches := func(id, script, name string) bool {
		c.start(object{
			"processId": id, "argv": []string{"/bin/sh", "-c", script + " " + name}, "cwd": "file://" + ws, "env": object{}, "tty": false, "sandbox": writable(ws),
		})
		return c.exited(id).ExitCode == 0
	}
	for i, script := range []string{"cat", "echo x >>", "chmod 600", "rm -f"} {
		for _, name := range names {
			if reaches(fmt.Sprint(name, i), script, name) {
				t.Errorf("%s %s is done", script, name)
			}
		}
		if !reaches(fmt.Sprint("other", i), script, "audit.logic") {
			t.Errorf("%s of another file fails", script)
		}
	}
	logged(t, p, "directory of its own")
	if n := strings.Count(p.stderr.text(), "directory of its own"); n != 1 {
		t.Errorf("the log tells %d times of the directory: %s", n, p.stderr.text())
	}
}
