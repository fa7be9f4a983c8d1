package server_test

import (
	"debug/elf"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/extension"
	"execserver/internal/sandbox"
	"execserver/protocol"
	"execserver/server"
)

// confiningOptions have sandboxes; the test is skipped where there are none.
func confiningOptions(t *testing.T) server.Options {
	t.Helper()
	return confiningWith(t, sandbox.Options{StateDir: t.TempDir()})
}

// confiningWith does the same with options of the sandboxes.
func confiningWith(t *testing.T, o sandbox.Options) server.Options {
	t.Helper()
	engine := sandbox.New(&o)
	t.Cleanup(engine.Close)
	if means, reason := engine.Mechanism(); means == sandbox.MechanismNone || means == sandbox.MechanismLandlock {
		t.Skipf("no sandbox here: %s", reason)
	}
	return server.Options{Extensions: &extension.Options{Sandbox: engine}}
}

// needsLibraries reports whether this program is not static, as the real one is.
func needsLibraries(t *testing.T) bool {
	t.Helper()
	self, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	return slices.ContainsFunc(self.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// TestRootOfToken reads and writes files with tokens for a directory, in it and around it.
func TestRootOfToken(t *testing.T) {
	t.Parallel() // it mostly waits
	root, outside := realTempDir(t), realTempDir(t)
	for path, content := range map[string]string{
		root + "/f": "inside", outside + "/f": "outside", root + "-": "beside",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		root + "/out": outside, root + "/file": outside + "/f", root + "/up": "..", root + "/in": "f", outside + "/in": root,
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	as := serveTokens(t, confiningOptions(t), map[string]string{
		"reader": fmt.Sprintf("scope = [\"files\"]\nroot = %q", root),
		"writer": fmt.Sprintf("scope = [\"files\"]\nroot = %q\naccess = \"write\"", root),
	})
	reader, writer := newCaller(t, as("reader"), ""), newCaller(t, as("writer"), "")
	if needsLibraries(t) {
		const want = "this exec-server is linked dynamically"
		if r := reader.call("fs/readFile", params{"path": root + "/f"}); r.Error == nil || !strings.Contains(r.Error.Message, want) {
			t.Errorf("got %s %v, want %q", r.Result, r.Error, want)
		}
		t.Skip("this program is linked dynamically, and finds no libraries below the root of a token")
	}
	content := base64.StdEncoding.EncodeToString([]byte("changed"))
	for _, c := range []*caller{reader, writer} {
		for _, path := range []string{root + "/f", root + "/in", root + "/./f"} {
			var file struct{ DataBase64 []byte }
			c.result("fs/readFile", params{"path": path}, &file)
			if string(file.DataBase64) != "inside" {
				t.Errorf("%s: %q", path, file.DataBase64)
			}
		}
		for _, path := range []string{
			// None but files of the test: where the root does not hold, they are changed.
			outside + "/f", root + "/../" + filepath.Base(outside) + "/f", root + "/out/f", root + "/file", root + "-",
			root + "/up/" + filepath.Base(outside) + "/f", "/proc/self/root" + outside + "/f", "/proc/self/cwd" + outside + "/f",
		} {
			for method, p := range map[string]params{
				"fs/readFile":    {"path": path},
				"fs/getMetadata": {"path": path, "followSymlinks": true},
				"fs/open":        {"path": path, "handleId": strings.Repeat("h", 20), "mode": "read"},
				"fs/writeFile":   {"path": path, "dataBase64": content},
				"fs/setMetadata": {"path": path, "mode": 0o777},
				"fs/symlink":     {"path": path + ".link", "target": "f", "followSymlinks": true},
				"fs/remove":      {"path": path + "/", "recursive": true, "force": false, "followSymlinks": true},
				"fs/copy":        {"sourcePath": path, "destinationPath": root + "/copy", "recursive": true},
				"fs/rename":      {"sourcePath": path, "destinationPath": root + "/moved", "followSymlinks": true},
				"fs/watch":       {"path": path, "watchId": "w"},
			} {
				changes := method != "fs/readFile" && method != "fs/getMetadata" && method != "fs/open" && method != "fs/watch"
				if c == reader && changes && path != outside+"/f" {
					continue // it changes nothing anywhere
				}
				if path == root+"/file" && (method == "fs/rename" || method == "fs/remove" || method == "fs/copy" || method == "fs/symlink") {
					continue // it is about the link, which is inside, or about another one beside it
				}
				if r := c.call(method, p); r.Error == nil {
					t.Errorf("%s %s: %s", method, path, r.Result)
				}
			}
		}
	}
	// There is a /proc, but it is that of the sandbox, in which nothing is known.
	for _, path := range []string{"/proc/self/environ", "/proc/1/environ"} {
		var file struct{ DataBase64 []byte }
		r := reader.call("fs/readFile", params{"path": path})
		if r.Error == nil && (json.Unmarshal(r.Result, &file) != nil || len(file.DataBase64) > 0) {
			t.Errorf("%s: %s", path, r.Result)
		}
	}
	// A sandbox that is asked for besides holds as well.
	reader.result("fs/readFile", params{"path": root + "/f", "sandbox": hiding(outside)}, new(struct{}))
	if r := reader.call("fs/readFile", params{"path": outside + "/f", "sandbox": hiding(root)}); r.Error == nil {
		t.Errorf("a sandbox beside that of the token: %s", r.Result)
	}
	if r := reader.call("fs/readFile", params{"path": root + "/f", "sandbox": hiding(root)}); r.Error == nil {
		t.Errorf("a sandbox that hides the root: %s", r.Result)
	}
	if r := reader.call("fs/writeFile", params{"path": root + "/new", "dataBase64": content}); r.Error == nil {
		t.Error("who may read has written")
	}
	writer.result("fs/writeFile", params{"path": root + "/new", "dataBase64": content}, new(struct{}))
	if r := writer.call("fs/writeFile", params{"path": root + "/.git/hooks/pre-commit", "dataBase64": content}); r.Error == nil {
		t.Error("a hook is written")
	}
	for path, want := range map[string]string{outside + "/f": "outside", root + "-": "beside", root + "/new": "changed"} {
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("%s is %q, %v, want %q", path, got, err, want)
		}
	}
}

// TestSandboxOfToken starts commands with a token that has a sandbox of its own.
func TestSandboxOfToken(t *testing.T) {
	root, outside := realTempDir(t), realTempDir(t)
	as := serveTokens(t, confiningOptions(t), map[string]string{
		"confined": fmt.Sprintf("scope = [\"full\"]\n[token.sandbox]\nread = [\"/\"]\nwrite = [%q]", root),
	})
	c := newCaller(t, as("confined"), "")
	run := func(id, script string, sandbox any) reply {
		return c.call("process/start", params{
			"processId": id, "argv": []string{"/bin/sh", "-c", script}, "cwd": "/", "env": params{}, "tty": false, "sandbox": sandbox,
		})
	}
	exit := func(id string) int {
		var result struct{ Exit struct{ ExitCode int } }
		c.result("process/wait", params{"processId": id}, &result)
		return result.Exit.ExitCode
	}
	disabled := params{"permissions": params{"type": "disabled"}, "windowsSandboxLevel": "disabled"}
	for id, sandbox := range map[string]any{"none": nil, "disabled": disabled} {
		if r := run(id, "echo x > "+root+"/"+id+" && ! echo x > "+outside+"/"+id, sandbox); r.Error != nil || exit(id) != 0 {
			t.Errorf("%s: %v", id, r.Error)
		}
		if _, err := os.Stat(outside + "/" + id); err == nil {
			t.Errorf("%s: it has written outside", id)
		}
		if _, err := os.Stat(root + "/" + id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	content := base64.StdEncoding.EncodeToString([]byte("x"))
	if r := c.call("fs/writeFile", params{"path": outside + "/f", "dataBase64": content}); r.Error == nil {
		t.Error("a file is written outside")
	}
	c.result("fs/writeFile", params{"path": root + "/f", "dataBase64": content}, new(struct{}))
	c.denied("http/request", httpParams("http://127.0.0.1:1/", nil), "the network")
}

// TestDirectoryIsExchanged has somebody exchange the directory of a token's command for a
// link to another one, again and again: no command begins there.
func TestDirectoryIsExchanged(t *testing.T) {
	inside, outside := realTempDir(t), realTempDir(t)
	if err := errors.Join(os.Mkdir(inside+"/dir", 0o700), os.Symlink(outside, inside+"/link")); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var exchanging sync.WaitGroup
	exchanging.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, inside+"/dir", unix.AT_FDCWD, inside+"/link", unix.RENAME_EXCHANGE)
			}
		}
	})
	scope := fmt.Sprintf("scope = [\"exec\"]\ndirectory = %q", inside)
	as := serveTokens(t, confiningOptions(t), map[string]string{"free": scope, "confined": scope + "\n[token.sandbox]\nread = [\"/\"]"})
	begin := func(c *caller, id string) *protocol.Error {
		r := c.call("process/start", params{
			"processId": id, "argv": []string{"/bin/pwd", "-P"}, "cwd": inside + "/dir", "env": params{}, "tty": false,
		})
		if r.Error != nil {
			return r.Error
		}
		if text := c.outputOf(id); text != inside+"/dir\n" && text != inside+"/link\n" {
			t.Errorf("%s: the command has begun in %s", id, text)
		}
		return nil
	}
	times := map[string]int{"free": 150, "confined": 40}
	for name, n := range times {
		c := newCaller(t, as(name), "")
		for i := range n {
			_ = begin(c, fmt.Sprint(name, i)) // it may be the link
		}
	}
	close(stop)
	exchanging.Wait()
	if err := errors.Join(os.RemoveAll(inside+"/dir"), os.Mkdir(inside+"/dir", 0o700)); err != nil {
		t.Fatal(err)
	}
	for name := range times {
		if err := begin(newCaller(t, as(name), ""), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
