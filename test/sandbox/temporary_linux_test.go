package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"
)

const readOnly = "Read-only file system"

// TestTemporaryDirectories has what TMPDIR may name, in the environment of a
// command and in that of the server.
func TestTemporaryDirectories(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		in := func(name string) string { return filepath.Join(m.base, name) }
		m.env = []string{"TMPDIR=/bin/.."}
		m.start()
		for _, name := range []string{"mine", "shared", "open", "sys/tmp"} {
			m.mkdir(in(name))
		}
		m.must(os.Symlink(m.outside, in("link")))
		m.must(os.Symlink(m.base, in("around")))
		m.must(os.Chmod(in("shared"), 0o777|os.ModeSticky))
		m.must(os.Chmod(in("open"), 0o777))
		if os.Geteuid() == 0 {
			for _, name := range []string{"shared", "open"} {
				m.must(os.Chown(in(name), 61235, 61235))
			}
		}
		sandbox := m.policy("restricted", special("root", "read"), special("tmpdir", "write"))
		file := "/exec-server-test-x"
		for _, try := range []struct{ tmpdir, file, want string }{
			{"/bin/..", m.outside, readOnly},
			{"/bin/..", "", readOnly},
			{"/", "", readOnly},
			{in("link"), m.outside, readOnly},
			{m.base + "/link/.", m.outside, readOnly},
			{in("around/mine"), in("mine"), readOnly},
			{m.base + "/mine/../outside", m.outside, readOnly},
			{in("file"), in("mine"), readOnly},
			{in("none"), in("none"), "No such file"},
			{"mine", in("mine"), readOnly},
			{m.base, in("mine"), readOnly}, // the home of the server's user
			{"/etc", "/etc", readOnly},
			{"/usr/bin", "/usr/bin", readOnly},
			{"/var", "/var", readOnly},
			{"/run", "/run", readOnly},
			{in("mine"), in("mine"), "done"},
			{m.base + "/mine/", in("mine"), "done"},
			{in("shared"), in("shared"), "done"},
		} {
			p := m.run(command{
				argv: []string{"/bin/sh", "-c", "LC_ALL=C; export LC_ALL; touch " + try.file + file + " 2>&1 && rm " + try.file + file + " && echo done"},
				env:  map[string]string{"TMPDIR": try.tmpdir}, sandbox: sandbox,
			})
			m.contains("TMPDIR="+try.tmpdir+", "+try.file, m.written(p), try.want)
		}
		if os.Geteuid() == 0 {
			p := m.run(command{
				argv: []string{"/bin/sh", "-c", "LC_ALL=C touch " + in("open/x 2>&1")},
				env:  map[string]string{"TMPDIR": in("open")}, sandbox: sandbox,
			})
			m.contains("another user's directory", m.written(p), readOnly)
		}
		m.wants(-32603, readOnly, "fs/writeFile", object{"path": uri(m.outside + "/x"), "dataBase64": "", "sandbox": sandbox})
		// What is to be denied is denied, whatever it is called.
		denied := m.policy("restricted", special("root", "read"), special("tmpdir", "deny"))
		p := m.run(command{
			argv: []string{"/bin/sh", "-c", "LC_ALL=C ls " + m.outside + " 2>&1"}, env: map[string]string{"TMPDIR": in("link")}, sandbox: denied,
		})
		m.contains("denied", m.written(p), "Permission denied")
	})
}
