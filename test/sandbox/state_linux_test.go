package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPlantedJournals has a state directory in which what was confined has put
// things that are no journals. A server starts all the same, and says so.
func TestPlantedJournals(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		planted := func(name string) string { return filepath.Join(m.state, name+".targets") }
		m.must(unix.Mkfifo(planted("fifo"), 0o600))
		m.write(planted("huge"), "")
		m.must(os.Truncate(planted("huge"), 3<<30))
		m.must(os.Mkdir(planted("directory"), 0o700))
		m.must(os.Symlink("huge.targets", planted("link")))
		names := []string{"fifo", "huge", "directory", "link"}
		m.own(m.state)
		if os.Geteuid() == 0 { // else there is nobody else's
			m.must(os.WriteFile(planted("foreign"), nil, 0o644))
			m.must(os.Chown(planted("foreign"), 61235, 61235))
			names = append(names, "foreign")
		}
		m.write(planted("ended"), "") // of a server that has ended
		m.start()
		m.says(m.workspaceWrite(), [2]string{"touch x", "done"})
		if _, err := os.Lstat(planted("ended")); err == nil {
			t.Error("the journal of a server that has ended is left")
		}
		m.stop()
		for _, name := range names {
			if _, err := os.Lstat(planted(name)); err != nil {
				t.Error(err)
			}
			if log := m.stderr.String(); !strings.Contains(log, planted(name)) {
				t.Errorf("the log does not name %s: %s", name, log)
			}
		}
	})
}

// TestStateAppears has directories of configuration and state that are missing when a command
// starts. The command does not read what appears in them, and cannot make them.
func TestStateAppears(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		const denied = "Permission denied"
		m.appears(m.policy("restricted", special("root", "read")), m.base+"/.config/exec-fleet", denied)
		m.must(os.RemoveAll(m.base + "/.config"))
		m.appears(m.workspaceWrite(), m.base+"/.config/exec-server", denied)
		fleet := m.base + "/.local/state/exec-fleet"
		m.must(os.RemoveAll(m.base + "/.local"))
		m.says(m.workspaceWrite(at(m.base, "write")), [2]string{"mkdir -p " + fleet + "/machine", denied}, [2]string{"mv " + m.base + "/.local " + m.base + "/moved", "busy"})
		if info, err := os.Lstat(fleet); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", info, err)
		}
	})
}

// TestStateOfOthers has a home directory of another user, as sudo may leave it. The server makes
// nothing there.
func TestStateOfOthers(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		if os.Geteuid() != 0 {
			t.Skip("there is no other user")
		}
		home := filepath.Join(m.base, "home")
		m.mkdir(home)
		m.must(os.Chown(home, 61235, 61235))
		m.must(os.Chmod(home, 0o777))
		m.env = []string{"HOME=" + home}
		m.start()
		m.says(m.policy("restricted", special("root", "read")), [2]string{"ls", "done"})
		if entries, err := os.ReadDir(home); err != nil || len(entries) > 0 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}

// TestServersOfConnect has the files of servers that connect has started. A command with write access
// around them neither reads nor replaces them.
func TestServersOfConnect(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		dirs := []string{m.base + "/.cache/exec-server/run/server", m.base + "/elsewhere/run"}
		var files []string
		script := "LC_ALL=C; export LC_ALL; try() { \"$@\" && echo \"allowed: $*\"; }; put() { echo new >\"$1\"; }; "
		for _, dir := range dirs {
			m.must(os.MkdirAll(dir, 0o700))
			for _, name := range []string{"socket", "lock", "program", "log"} {
				path := filepath.Join(dir, name)
				m.write(path, "private")
				files = append(files, path)
				script += "try cat " + path + "; try put " + path + "; try cp file " + path + "; "
			}
			script += "try mv " + dir + " " + dir + "2; try rm -rf " + dir + "; "
		}
		m.own(m.base)
		m.start()
		for _, network := range []string{"restricted", "enabled"} {
			sandbox := m.policy(network, special("root", "read"), at(m.base, "write"), at(m.base+"/.cache", "write"))
			said := m.written(m.run(command{argv: []string{"/bin/sh", "-c", script + "echo done"}, sandbox: sandbox}))
			if !strings.Contains(said, "done") || strings.Contains(said, "allowed") {
				t.Errorf("network %s: %s", network, said)
			}
		}
		for _, path := range files {
			if text, err := os.ReadFile(path); err != nil || string(text) != "private" {
				t.Errorf("%s has %q, %v", path, text, err)
			}
		}
	})
}
