package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLinksOfProcesses asks with policies that let everything be read for what the links of
// processes outside lead to: removed files, directories, and what the server has open.
func TestLinksOfProcesses(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		gone := filepath.Join(m.base, "gone")
		p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo removed > " + gone + "; exec 3<" + gone + "; rm " + gone + "; echo ready $$; cat"}, dir: m.outside})
		m.must(err)
		m.awaitOutput(p, "ready")
		var pid int
		if _, err := fmt.Sscanf(m.written(p), "ready %d", &pid); err != nil {
			t.Fatal(err)
		}
		process := fmt.Sprint("/proc/", pid)
		link := filepath.Join(m.ws, "link")
		m.must(os.Symlink(process+"/fd/3", link))
		m.must(os.Symlink(process+"/cwd", filepath.Join(m.ws, "dir-link")))
		walk := object{"maxDepth": 1, "maxDirectories": 10, "maxEntries": 100, "followDirectorySymlinks": true, "pruneHiddenDirectories": false}
		for name, sandbox := range map[string]object{"read": m.policy("enabled", special("root", "read")), "workspace": m.workspaceWrite()} {
			shows := func(method, path string, more object) {
				params := object{"path": uri(path), "sandbox": sandbox}
				for key, value := range more {
					params[key] = value
				}
				if err := m.call(method, params, nil); err == nil {
					t.Errorf("%s: %s answers for %s", name, method, path)
				}
			}
			for _, path := range []string{process + "/fd/3", link} {
				for _, method := range []string{"fs/readFile", "fs/canonicalize", "fs/getMetadata"} {
					shows(method, path, nil)
				}
				shows("fs/readFile", path, object{"followSymlinks": true})
				shows("fs/open", path, object{"handleId": "h"})
			}
			for _, path := range []string{process + "/cwd", process + "/root", process + "/fd", filepath.Join(m.ws, "dir-link")} {
				for _, method := range []string{"fs/readDirectory", "fs/canonicalize", "fs/getMetadata"} {
					shows(method, path, nil)
				}
				shows("fs/walk", path, object{"options": walk})
				shows("fs/watch", path, object{"watchId": "w"})
			}
			for fd := range 24 {
				shows("fs/canonicalize", fmt.Sprintf("/proc/%d/fd/%d", m.pid, fd), nil)
			}
			m.wants(0, "", "fs/getMetadata", object{"path": uri(m.outside + "/file"), "sandbox": sandbox})
			m.wants(0, "", "fs/readFile", object{"path": uri(m.outside + "/file"), "sandbox": sandbox})
		}
		m.must(m.call("process/terminate", object{"processId": id}, nil))
		m.await(p)
	})
}

// TestNamesOfSecrets asks for names and sizes of what every sandbox hides.
func TestNamesOfSecrets(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		token, own := filepath.Join(m.base, "token"), filepath.Join(m.base, "own")
		m.mkdir(own)
		for _, name := range []string{"token", "own/token", "own/certificate"} {
			m.write(filepath.Join(m.base, name), "secret")
		}
		sandbox := m.policy("enabled", special("root", "read"))
		walk := object{"maxDepth": 3, "maxDirectories": 100, "maxEntries": 1000, "followDirectorySymlinks": false, "pruneHiddenDirectories": false}
		for _, dir := range []string{own, m.state} {
			m.wants(-32600, "permission denied", "fs/readDirectory", object{"path": uri(dir), "sandbox": sandbox})
			m.wants(-32600, "permission denied", "fs/watch", object{"watchId": "w", "path": uri(dir), "sandbox": sandbox})
		}
		var found struct{ Entries []struct{ Path string } }
		m.must(m.call("fs/walk", object{"path": uri(m.base), "options": walk, "sandbox": sandbox}, &found))
		for _, e := range found.Entries {
			if strings.HasPrefix(e.Path, uri(own)+"/") || strings.HasPrefix(e.Path, uri(m.state)+"/") {
				t.Errorf("fs/walk shows %s", e.Path)
			}
		}
		var metadata struct{ Size int64 }
		if m.must(m.call("fs/getMetadata", object{"path": uri(token), "sandbox": sandbox}, &metadata)); metadata.Size != 0 {
			t.Errorf("fs/getMetadata shows %d bytes", metadata.Size)
		}
	})
}
