package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSecrets checks that commands can neither read nor write the files with the server's
// credentials, nor its state, whatever a policy allows (row 49). One of the files is in a
// writable directory.
func TestSecrets(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		const denied = "Permission denied"
		token, key := filepath.Join(m.base, "token"), filepath.Join(m.ws, "deep/key")
		m.write(token, "secret")
		m.mkdir(filepath.Dir(key))
		m.write(key, "secret")
		m.must(os.Symlink(token, filepath.Join(m.ws, "link")))
		for name, sandbox := range map[string]object{
			"read":      m.policy("enabled", special("root", "read")),
			"write":     m.policy("enabled", special("root", "write"), at(m.outside, "read")),
			"workspace": m.workspaceWrite(),
			"named":     m.workspaceWrite(at(token, "read"), at(key, "read"), at(m.state, "read")),
			"released":  m.workspaceWrite(at(token, "write"), at(key, "write"), at(m.state, "write")),
		} {
			t.Run(name, func(*testing.T) {
				m.says(sandbox,
					[2]string{"cat " + token, denied}, [2]string{"cat link", denied}, [2]string{"cat " + key, denied},
					[2]string{"cat /proc/self/root" + token, denied}, [2]string{"ls " + m.state, denied},
					[2]string{"cat " + m.state + "/*", denied}, [2]string{"cat file", "old"})
			})
		}
		// Nor can the next command find it at another place.
		m.says(m.workspaceWrite(), [2]string{"mv deep moved", "busy"}, [2]string{"ln deep/key here", denied}, [2]string{"rm -f deep/key", denied})
		read := object{"path": uri(token), "sandbox": m.policy("restricted", special("minimal", "read"), at(token, "read"))}
		m.wants(-32004, "no such file or directory (os error 2)", "fs/readFile", read)
		m.says(nil, [2]string{"cat " + token, "secret"})
	})
}

// TestTrusted has a file of public keys where a command may write, a secret of which the
// server learns late, and one that it reads through a link.
func TestTrusted(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		const only = "Read-only file system"
		keys, later, indirect := filepath.Join(m.ws, "known/keys"), filepath.Join(m.ws, "later"), filepath.Join(m.ws, "indirect")
		m.mkdir(filepath.Dir(keys))
		m.write(keys, "public")
		for name, sandbox := range map[string]object{
			"workspace": m.workspaceWrite(),
			"released":  m.workspaceWrite(at(keys, "write")),
			"write":     m.policy("enabled", special("root", "write"), at(m.outside, "read")),
		} {
			t.Run(name, func(*testing.T) {
				m.says(sandbox, [2]string{"cat " + keys, "public"}, [2]string{"echo x >" + keys, only}, [2]string{"rm -f " + keys, "busy"},
					[2]string{"mv " + filepath.Dir(keys) + " " + m.ws + "/moved", "busy"})
				m.wants(-32603, only, "fs/writeFile", object{"path": uri(keys), "dataBase64": "", "sandbox": sandbox})
			})
		}
		m.says(m.workspaceWrite(), [2]string{"ls later", "No such file"})
		m.write(later, "secret")
		m.says(m.workspaceWrite(), [2]string{"cat later", "Permission denied"})
		m.must(os.Symlink(later, indirect))
		m.refuses(m.workspaceWrite(), -32602, "by which the server knows its clients, because it crosses writable symlink "+indirect)
		m.must(os.Remove(indirect))
		m.must(os.Remove(later))
		m.says(nil, [2]string{"cat " + keys, "public"})
	})
}

// TestSecretsInFullView reads the same files, and the kernel's information about the
// machine, with sandboxes that may read everything.
func TestSecretsInFullView(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		token, key := filepath.Join(m.base, "token"), filepath.Join(m.ws, "deep/key")
		m.write(token, "secret")
		m.mkdir(filepath.Dir(key))
		m.write(key, "secret")
		m.must(os.Symlink(token, filepath.Join(m.ws, "link")))
		m.must(os.Symlink("deep", filepath.Join(m.ws, "alias")))
		notes, err := filepath.Glob(filepath.Join(m.state, "*.targets"))
		m.must(err)
		files := append(notes, token, key, filepath.Join(m.ws, "link"), filepath.Join(m.ws, "alias/key"))
		if firmware, err := filepath.Glob("/sys/firmware/*/*/*"); err == nil && len(firmware) > 0 {
			files = append(files, firmware[0])
		}
		for name, sandbox := range map[string]object{
			"read": m.policy("enabled", special("root", "read")), "workspace": m.workspaceWrite(),
		} {
			for _, file := range files {
				if m.call("fs/readFile", object{"path": uri(file), "sandbox": sandbox}, nil) == nil {
					t.Errorf("%s: fs/readFile shows %s", name, file)
				}
				if m.call("fs/open", object{"handleId": "h", "path": uri(file), "sandbox": sandbox}, nil) == nil {
					t.Errorf("%s: fs/open opens %s", name, file)
					m.must(m.call("fs/close", object{"handleId": "h"}, nil))
				}
			}
			m.wants(0, "", "fs/readFile", object{"path": uri(m.outside + "/file"), "sandbox": sandbox})
		}
	})
}
