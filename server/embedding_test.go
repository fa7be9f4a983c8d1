//go:build unix

package server_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/protocol"
	"execserver/server"
)

// runs runs a shell script as process id, and returns the process's exit code.
func (p *fileClient) runs(id, script, dir string, sandbox any) (exitCode int, err error) {
	p.t.Helper()
	start := fileParams{
		"processId": id, "argv": []string{"/bin/sh", "-c", script}, "cwd": "file://" + dir, "env": fileParams{}, "tty": false,
	}
	if sandbox != nil {
		start["sandbox"] = sandbox
	}
	if err := p.try("process/start", start, nil); err != nil {
		return 0, err
	}
	var ended protocol.WaitResult
	p.call("process/wait", fileParams{"processId": id}, &ended)
	if ended.Exit == nil {
		p.t.Fatalf("process %s has not exited", id)
	}
	return int(ended.Exit.ExitCode), nil
}

// TestOpenAuditLog has a server record a command in a log that is renamed meanwhile. When
// the log cannot be written any more, a server that requires it refuses commands.
func TestOpenAuditLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	if _, err := server.OpenAuditLog(filepath.Join(dir, "none", "audit.log"), true, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that does not exist: %v", err)
	}
	log, err := server.OpenAuditLog(path, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	p := connectFiles(t, newFileServer(t, &server.Options{Audit: log}))
	if _, err := p.runs("1", "exit 3", dir, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := log.Reopen(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.runs("2", "exit 4", dir, nil); err != nil {
		t.Fatal(err)
	}
	log.Close()
	const refused = "cannot be written to the audit log"
	if _, err := p.runs("3", "exit 5", dir, nil); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("with a closed log: %v", err)
	}

	for i, name := range []string{path + ".1", path} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{`"argv":["/bin/sh","-c","exit 3"]`, `"argv":["/bin/sh","-c","exit 4"]`}
		if !strings.Contains(string(text), want[i]) || strings.Contains(string(text), want[1-i]) {
			t.Errorf("%s has not %s alone:\n%s", name, want[i], text)
		}
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}

	var none *server.AuditLog
	if err := none.Reopen(); err != nil {
		t.Errorf("no log: %v", err)
	}
	none.Close()
}

// TestNewSandbox runs commands by a server with a sandbox: what they write goes where the
// sandbox permits, and a secret stays one.
func TestNewSandbox(t *testing.T) {
	inside, outside := t.TempDir(), t.TempDir()
	secret := filepath.Join(inside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	entry := func(access string, path fileParams) fileParams { return fileParams{"path": path, "access": access} }
	policy := fileParams{
		"permissions": fileParams{"type": "managed", "network": "restricted", "file_system": fileParams{
			"type": "restricted", "entries": []fileParams{
				entry("read", fileParams{"type": "special", "value": fileParams{"kind": "root"}}),
				entry("write", fileParams{"type": "path", "path": "file://" + inside}),
			},
		}},
		"cwd": "file:///", "workspaceRoots": []string{}, "windowsSandboxLevel": "disabled",
	}
	token := filepath.Join(inside, "token")
	if err := os.WriteFile(token, []byte("a token of a client"), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := server.NewAuthenticator(server.AuthConfig{TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	sandbox := server.NewSandbox(server.SandboxOptions{Log: slog.New(slog.DiscardHandler), Auth: auth, Secrets: []string{secret}})
	t.Cleanup(sandbox.Close)
	p := connectFiles(t, newFileServer(t, &server.Options{Sandbox: sandbox}))
	script := "echo >" + inside + "/f; echo >" + outside + "/f; cat " + secret + " " + token + " >" + inside + "/copy; exit 7"
	exitCode, err := p.runs("1", script, inside, policy)
	if err != nil && strings.Contains(err.Error(), "cannot be enforced on this executor") {
		t.Skipf("no sandbox here: %v", err)
	}
	if exitCode != 7 || err != nil {
		t.Errorf("exit code %d, %v", exitCode, err)
	}
	if _, err := os.Stat(inside + "/f"); err != nil {
		t.Errorf("a write that the sandbox permits: %v", err)
	}
	if _, err := os.Stat(outside + "/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a write that it does not permit: %v", err)
	}
	if text, err := os.ReadFile(inside + "/copy"); len(text) > 0 || err != nil {
		t.Errorf("the secrets: %q, %v", text, err)
	}

	for what, misuse := range map[string]func(){
		"no mode":         func() { server.NewSandbox(server.SandboxOptions{Mode: "requires"}) },
		"a zero sandbox":  func() { server.New(&server.Options{Sandbox: new(server.Sandbox)}) },
		"a zero AuditLog": func() { server.New(&server.Options{Audit: new(server.AuditLog)}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			misuse()
		}()
	}

	// In this mode the server starts nothing without a sandbox.
	required := server.NewSandbox(server.SandboxOptions{Mode: server.SandboxRequire})
	t.Cleanup(required.Close)
	p = connectFiles(t, newFileServer(t, &server.Options{Sandbox: required}))
	if _, err := p.runs("1", "exit", inside, nil); err == nil || !strings.Contains(err.Error(), "request a sandbox") {
		t.Errorf("without a sandbox: %v", err)
	}
}
