package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecretsOfReload has the tokens file name another secret while the server runs.
// Commands that start after that do not see it, also when what is read next is no
// good.
func TestSecretsOfReload(t *testing.T) {
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
		for _, file := range []string{"secret", "other"} { // which keeps the directory from being a secret as well
			if err := os.WriteFile(filepath.Join(dir, name, file), []byte(secret), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	replaceFile(t, tokens, ann+entry("first"))
	p := newServer(t, "--tokens", tokens)
	c := as(t, p, "the token of ann", nil)
	c.handshake(nil)
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
			c.call("process/start", object{
				"processId": id, "argv": []string{"/bin/cat", file}, "cwd": "file://" + ws, "env": object{}, "tty": false, "sandbox": writable(ws),
			})
			code := c.receive("method", "process/exited")["params"].(object)["exitCode"].(float64)
			if got := code == 0; got != want {
				t.Errorf("%s, a command that reads %s ends with %v", when, name, code)
			}
			c.send(object{"id": id, "method": "fs/readFile", "params": object{"path": "file://" + file, "sandbox": writable(ws)}})
			if answer := c.receive("id", id); (answer["error"] == nil) != want {
				t.Errorf("%s, to read %s is answered by %v", when, name, answer)
			}
		}
	}
	expect("at first", map[string]bool{"first/secret": false, "first/other": true, "second/secret": true})
	replaceFile(t, tokens, ann+entry("first")+entry("second"))
	logged(t, p, "the credentials has been read again")
	hidden := map[string]bool{"first/secret": false, "second/secret": false, "second/other": true}
	expect("after a reload", hidden)
	replaceFile(t, tokens, ann+"[[token]\n")
	logged(t, p, "the credentials of before stays in force")
	expect("after one that failed", hidden)
	for _, name := range []string{"first", "second"} {
		if n := strings.Count(p.stderr.text(), "file="+filepath.Join(dir, name, "secret")+"\n"); n != 1 {
			t.Errorf("the log names the %s secret %d times: %s", name, n, p.stderr.text())
		}
	}
}
