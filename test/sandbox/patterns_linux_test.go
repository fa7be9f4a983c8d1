package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestManyMatches has more files that a pattern denies in one directory than are hidden
// one by one, and many in the directory in which commands start. Commands are started all
// the same, and see none of them.
func TestManyMatches(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		m.start()
		for _, dir := range []string{"", "flood", "some"} {
			m.must(os.MkdirAll(filepath.Join(m.ws, dir), 0o755))
		}
		// Few enough to be found in the time for it, and mounted over in ours, on a busy machine.
		for dir, n := range map[string]int{"": 500, "flood": 2_001} {
			for i := range n {
				m.must(os.WriteFile(filepath.Join(m.ws, dir, fmt.Sprint(i, ".env")), []byte("secret"), 0o644))
			}
		}
		for _, name := range []string{"some/x.env", "some/file", "flood/file"} {
			m.write(filepath.Join(m.ws, name), "text")
		}
		m.own(m.ws)
		script := "for f in 499.env flood/2000.env some/x.env some/file file flood/file; do cat $f >/dev/null 2>&1 && echo $f; done; touch some/new new && echo done"
		p := m.run(command{argv: []string{"/bin/sh", "-c", script}, sandbox: m.workspaceWrite(glob("**/*.env"))})
		if got := m.written(p); got != "some/file\nfile\ndone\n" {
			t.Errorf("what can be read: %q", got)
		}
	})
}

// TestPatternsOfClients checks that patterns mean what they mean to the released
// server.
func TestPatternsOfClients(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.write(filepath.Join(m.ws, "dir/key.pem"), "secret")
		m.must(unix.Symlink(m.outside, filepath.Join(m.base, "alias")))
		for pattern, file := range map[string]string{
			"**/*.{env,pem}":         "dir/key.pem",
			"**/[!x]ey.pem":          "dir/key.pem",
			m.base + "/alias/f*":     m.outside + "/file",
			m.base + "/{outs,x}*/f*": m.outside + "/file",
		} {
			m.says(m.workspaceWrite(glob(pattern)), [2]string{"cat " + file, "Permission denied"})
		}
		m.refuses(m.workspaceWrite(glob("**/*.{env,pem")), -32602, "a brace is not closed")
	})
}
