package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/protocol"
)

// TestMetadata changes modes, times, sizes and links with a sandbox, and reads them (row
// 54).
func TestMetadata(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		const readOnly, denied, notPermitted = "read-only file system (os error 30)", "Permission denied", "Operation not permitted"
		sandbox := m.workspaceWrite()
		ws := func(name string) string { return uri(filepath.Join(m.ws, name)) }
		out := func(name string) string { return uri(filepath.Join(m.outside, name)) }
		m.must(os.Symlink(m.outside, filepath.Join(m.ws, "link")))
		m.must(os.Symlink(".git", filepath.Join(m.ws, "git")))
		m.must(os.Symlink(filepath.Join(m.outside, "file"), filepath.Join(m.ws, "outlink")))
		before := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git"))
		with := func(path string, more object) object {
			params := object{"path": path, "sandbox": sandbox}
			for name, value := range more {
				params[name] = value
			}
			return params
		}
		t.Run("set", func(t *testing.T) {
			forbidden := []string{
				out("file"), out("dir"), out(""), ws("link"), ws("link/file"), ws("outlink"), ws(".git"), ws("git"), ws(".git/config"),
				ws("git/config"), ws(".codex"), "file:///proc/self/exe", "file:///proc/self/root/" + strings.TrimPrefix(m.outside, "/") + "/file",
			}
			for _, path := range forbidden {
				m.wants(-32603, readOnly, "fs/setMetadata", with(path, object{"mode": 0o700}))
				m.wants(-32603, readOnly, "fs/setMetadata", with(path, object{"modifiedAtMs": 1}))
			}
			if m.user.uid == 0 && os.Geteuid() == 0 { // it is the same file in every /proc, and keeps its mode if the server changes it
				m.wants(-32603, readOnly, "fs/setMetadata", with("file:///proc/uptime", object{"mode": 0o444}))
			} else {
				m.wants(-32600, notPermitted, "fs/setMetadata", with("file:///proc/uptime", object{"mode": 0o444}))
			}
			for _, path := range []string{out("file"), ws("link/file"), ws("outlink"), ws(".git/config"), ws("git/config")} {
				m.wants(-32603, readOnly, "fs/setMetadata", with(path, object{"size": 0}))
				m.wants(-32603, readOnly, "fs/open", with(path, object{"handleId": "u", "mode": "update"}))
			}
			m.wants(0, "", "fs/setMetadata", with(ws("file"), object{"mode": 0o640, "modifiedAtMs": 1500, "modifiedNs": 7, "size": 1}))
			info, err := os.Lstat(filepath.Join(m.ws, "file"))
			if m.must(err); info.Mode() != 0o640 || info.Size() != 1 || info.ModTime().UnixNano() != 1_500_000_007 {
				t.Errorf("%v %d %v", info.Mode(), info.Size(), info.ModTime())
			}
		})
		t.Run("set-ID bits", func(t *testing.T) { // as in row 49
			for _, mode := range []int{0o4755, 0o2755, 0o6755} {
				m.wants(-32600, notPermitted, "fs/setMetadata", with(ws("file"), object{"mode": mode}))
				m.wants(-32600, notPermitted, "fs/setMetadata", with(ws("file"), object{"mode": mode, "followSymlinks": false}))
				m.wants(-32600, notPermitted, "fs/createDirectory", with(ws("sgid"), object{"mode": mode, "recursive": true}))
				m.wants(-32600, notPermitted, "fs/createDirectory", with(ws("sgid"), object{"mode": mode, "recursive": true, "followSymlinks": false}))
				m.wants(0, "", "fs/writeFile", with(ws("program"), object{"mode": mode, "dataBase64": "aGVsbG8=", "modifiedAtMs": 1000}))
				info, err := os.Lstat(filepath.Join(m.ws, "program"))
				if m.must(err); info.Mode() != 0o755 || info.ModTime().UnixMilli() != 1000 {
					t.Errorf("a written program is %v of %v", info.Mode(), info.ModTime())
				}
			}
			if _, err := os.Lstat(filepath.Join(m.ws, "sgid")); err == nil {
				t.Error("the directory is there")
			}
		})
		t.Run("links", func(t *testing.T) {
			target := object{"target": m.outside}
			for _, path := range []string{out("new"), ws("link/new"), ws(".git/new"), ws(".codex/new")} {
				m.wants(-32603, readOnly, "fs/symlink", with(path, target))
			}
			for _, path := range []string{ws(".git"), ws(".codex"), ws("file")} {
				m.wants(-32603, "file exists", "fs/symlink", with(path, target))
			}
			// A new link leads no further than one that was there.
			m.wants(0, "", "fs/symlink", with(ws("escape"), target))
			m.wants(-32603, readOnly, "fs/writeFile", with(ws("escape/file"), object{"dataBase64": ""}))
			m.wants(-32603, readOnly, "fs/setMetadata", with(ws("escape/file"), object{"mode": 0o777}))
			m.wants(-32603, "not a directory", "fs/setMetadata", with(ws("escape/file"), object{"mode": 0o777, "followSymlinks": false}))
			m.wants(-32600, "path contains a symbolic link", "fs/setMetadata", with(ws("escape"), object{"mode": 0o777, "followSymlinks": false}))
		})
		t.Run("reading", func(t *testing.T) {
			minimal := m.policy("enabled", special("minimal", "read"), special("project_roots", "write"), project("dir", "deny"))
			read := func(code protocol.Code, text, method, path string) {
				m.wants(code, text, method, object{"path": path, "details": true, "link": true, "sandbox": minimal})
			}
			m.must(os.Symlink("x", filepath.Join(m.ws, "dir/l")))
			m.must(os.Symlink("x", filepath.Join(m.outside, "l")))
			for _, method := range []string{"fs/getMetadata", "fs/readLink"} {
				read(-32004, "", method, out("l"))
				read(-32004, "", method, ws("link/l"))
				read(-32600, denied, method, ws("dir/l"))
				read(0, "", method, ws("link"))
			}
			m.must(os.Remove(filepath.Join(m.outside, "l")))
			read(-32600, denied, "fs/readDirectory", ws("dir"))
			read(-32004, "", "fs/readDirectory", out(""))
			// What the server has open is nobody's business, even where everything may be read.
			for _, sandbox := range []any{minimal, sandbox} {
				open := object{"path": fmt.Sprintf("file:///proc/%d/fd", m.cmd.Process.Pid), "details": true, "sandbox": sandbox}
				m.wants(-32004, "", "fs/readDirectory", open)
				for _, name := range []string{"exe", "cwd", "root", "fd/0"} {
					path := fmt.Sprintf("file:///proc/%d/%s", m.cmd.Process.Pid, name)
					m.wants(-32004, "", "fs/readLink", object{"path": path, "sandbox": sandbox})
					m.wants(-32004, "", "fs/getMetadata", object{"path": path, "details": true, "link": true, "sandbox": sandbox})
				}
			}
		})
		t.Run("updates", func(t *testing.T) {
			open := with(ws("kept"), object{"handleId": "h", "mode": "update", "createMode": 0o600})
			m.wants(0, "", "fs/open", open)
			// The right is that to the file, whatever becomes of its name.
			m.must(os.Remove(filepath.Join(m.ws, "kept")))
			m.must(os.Symlink(filepath.Join(m.outside, "file"), filepath.Join(m.ws, "kept")))
			m.wants(0, "", "fs/writeBlock", object{"handleId": "h", "offset": 0, "chunk": "aGVsbG8="})
			m.wants(0, "", "fs/close", object{"handleId": "h"})
			m.wants(-32603, readOnly, "fs/open", open)
		})
		// The directory has other times, because a link was in it.
		after := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git"))
		if trim := func(s string) string { _, rest, _ := strings.Cut(s, "\n"); return rest }; trim(after) != trim(before) {
			t.Errorf("there is now\n%s\nin place of\n%s", after, before)
		}
		m.clean(m.ws)
	})
}
