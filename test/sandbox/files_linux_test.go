package sandbox_test

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/protocol"
)

// wants checks the error code of a call, and its text, which shells say with a capital. With
// code 0 the call must succeed.
func (m *machine) wants(code protocol.Code, text, method string, params object) {
	m.t.Helper()
	err := m.call(method, params, nil)
	failed, _ := errors.AsType[*protocol.Error](err)
	switch {
	case failed == nil && code != 0:
		m.t.Errorf("%s %v works, want %d", method, params["path"], code)
	case failed != nil && (failed.Code != code || !strings.Contains(strings.ToLower(failed.Message), strings.ToLower(text))):
		m.t.Errorf("%s %v: %v, want %d %q", method, params["path"], failed, code, text)
	}
}

// TestFiles calls the methods about files with a sandbox (rows 40 to 42).
func TestFiles(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		const readOnly, hello = "read-only file system (os error 30)", "aGVsbG8="
		sandbox := m.workspaceWrite()
		ws := func(name string) string { return uri(filepath.Join(m.ws, name)) }
		out := func(name string) string { return uri(filepath.Join(m.outside, name)) }
		m.must(os.Symlink(m.outside, filepath.Join(m.ws, "link")))
		m.must(os.Symlink(".git", filepath.Join(m.ws, "git")))
		before := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git"))
		t.Run("changes", func(t *testing.T) { // row 40
			edit := func(code protocol.Code, text, method, path string, more object) {
				params := object{"path": path, "sandbox": sandbox}
				for name, value := range more {
					params[name] = value
				}
				m.wants(code, text, method, params)
			}
			data, recursive := object{"dataBase64": hello}, object{"recursive": true}
			edit(0, "", "fs/writeFile", ws("made"), data)
			edit(-32004, "no such file or directory (os error 2)", "fs/writeFile", ws("none/made"), data)
			edit(0, "", "fs/createDirectory", ws("none"), recursive)
			edit(0, "", "fs/remove", ws("none"), recursive)
			for _, path := range []string{out("file"), out("new"), ws("link/file"), ws("link/new"), ws(".git/config"), ws("git/config"), ws(".git/x"), ws(".codex/x")} {
				edit(-32603, readOnly, "fs/writeFile", path, data)
			}
			edit(-32603, readOnly, "fs/createDirectory", ws(".git/x"), recursive)
			edit(-32603, readOnly, "fs/createDirectory", ws("link/x"), recursive)
			edit(-32603, "", "fs/remove", out("dir"), recursive)
			edit(-32603, "", "fs/remove", ws(".git"), recursive)
			edit(0, "", "fs/remove", out("none"), object{"force": true})
			copied := func(code protocol.Code, from, to string) {
				m.wants(code, "", "fs/copy", object{"sourcePath": from, "destinationPath": to, "recursive": true, "sandbox": sandbox})
			}
			copied(0, out("file"), ws("copy"))
			copied(-32603, ws("file"), out("copy"))
			copied(-32603, ws("dir"), ws("link/copy"))
			copied(-32603, ws("file"), ws(".git/copy"))
		})
		t.Run("handles", func(t *testing.T) { // row 42
			open := func(code protocol.Code, path string) {
				m.wants(code, "", "fs/open", object{"handleId": "h", "path": path, "mode": "replace", "sandbox": sandbox})
			}
			open(-32603, out("file"))
			open(-32603, ws("link/file"))
			open(-32603, ws(".git/config"))
			open(0, ws("swapped"))
			// The right is that to the file, whatever becomes of its name.
			m.must(os.Remove(filepath.Join(m.ws, "swapped")))
			m.must(os.Symlink(filepath.Join(m.outside, "file"), filepath.Join(m.ws, "swapped")))
			m.wants(0, "", "fs/writeBlock", object{"handleId": "h", "offset": 0, "chunk": hello})
			m.wants(0, "", "fs/close", object{"handleId": "h"})
			// Nor does it matter what becomes of the root.
			open(0, ws("kept"))
			m.must(os.Rename(m.ws, m.ws+".old"))
			m.must(os.Symlink(m.outside, m.ws))
			m.wants(0, "", "fs/writeBlock", object{"handleId": "h", "offset": 0, "chunk": hello})
			m.wants(0, "", "fs/close", object{"handleId": "h"})
			m.must(os.Remove(m.ws))
			m.must(os.Rename(m.ws+".old", m.ws))
			if text, err := os.ReadFile(filepath.Join(m.ws, "kept")); string(text) != "hello" {
				t.Errorf("%q, %v", text, err)
			}
		})
		t.Run("hidden", func(t *testing.T) { // row 41
			minimal := m.policy("enabled", special("minimal", "read"), special("project_roots", "write"), project("dir", "deny"))
			for _, method := range []string{"fs/readFile", "fs/getMetadata", "fs/readDirectory", "fs/canonicalize"} {
				m.wants(-32004, "", method, object{"path": out("file"), "sandbox": minimal})
			}
			walk := object{"maxDepth": 4, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": true}
			m.wants(-32004, "", "fs/walk", object{"path": out(""), "options": walk, "sandbox": minimal})
			m.wants(-32004, "", "fs/open", object{"handleId": "x", "path": out("file"), "sandbox": minimal})
			m.wants(-32600, "permission denied", "fs/readDirectory", object{"path": ws("dir"), "sandbox": minimal})
			m.wants(-32600, "permission denied", "fs/readFile", object{"path": ws("dir/x"), "sandbox": minimal})
			for _, method := range []string{"fs/getMetadata", "fs/canonicalize", "fs/open"} {
				m.wants(-32600, "permission denied", method, object{"handleId": "x", "path": ws("dir/x"), "sandbox": minimal})
			}
			denied := m.policy("enabled", special("root", "read"), special("project_roots", "write"), project("file", "deny"))
			m.wants(-32600, "permission denied", "fs/readFile", object{"path": ws("file"), "sandbox": denied})
			m.wants(-32600, "permission denied", "fs/open", object{"handleId": "x", "path": ws("file"), "sandbox": denied})
			var metadata struct{ Size int }
			if m.must(m.call("fs/getMetadata", object{"path": ws("file"), "sandbox": denied}, &metadata)); metadata.Size != 0 {
				t.Errorf("a denied file has the size %d", metadata.Size)
			}
			m.wants(-32600, "", "fs/watch", object{"watchId": "w", "path": ws("dir"), "sandbox": minimal})
			var found struct{ DataBase64 string }
			m.must(m.call("fs/readFile", object{"path": ws("file"), "sandbox": minimal}, &found))
			if text, _ := base64.StdEncoding.DecodeString(found.DataBase64); string(text) != "old" {
				t.Errorf("%q", text)
			}
		})
		t.Run("older policies", func(t *testing.T) {
			old := object{"sandboxPolicy": object{"type": "workspace-write", "exclude_slash_tmp": true}, "sandboxPolicyCwd": m.ws}
			m.wants(0, "", "fs/writeFile", object{"path": m.ws + "/older", "dataBase64": hello, "sandbox": old})
			m.wants(-32603, readOnly, "fs/writeFile", object{"path": m.outside + "/older", "dataBase64": hello, "sandbox": old})
			m.wants(-32603, readOnly, "fs/writeFile", object{"path": m.ws + "/older", "dataBase64": hello, "sandboxPolicy": object{"type": "read-only"}})
		})
		if after := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git")); after != before {
			t.Errorf("there is now\n%s\nin place of\n%s", after, before)
		}
		m.clean(m.ws)
	})
}
