package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestManyMatches has more files that a pattern denies than are hidden one by one.
// Commands are started all the same, and see none of them.
func TestManyMatches(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		m.start()
		for _, dir := range []string{"", "flood", "some"} {
			m.must(os.MkdirAll(filepath.Join(m.ws, dir), 0o755))
		}
		for i := range 10_001 {
			for _, dir := range []string{"", "flood"} {
				m.must(os.WriteFile(filepath.Join(m.ws, dir, fmt.Sprint(i, ".env")), []byte("secret"), 0o644))
			}
		}
		for _, name := range []string{"some/x.env", "some/file", "flood/file"} {
			m.write(filepath.Join(m.ws, name), "text")
		}
		m.own(m.ws)
		sandbox := m.workspaceWrite(glob("**/*.env"))
		script := "for f in 10000.env flood/10000.env some/x.env some/file file flood/file; do cat $f >/dev/null 2>&1 && echo $f; done; touch some/new new && echo done"
		p := m.run(command{argv: []string{"/bin/sh", "-c", script}, sandbox: sandbox})
		if got := m.written(p); got != "some/file\nfile\ndone\n" {
			t.Errorf("what can be read: %q", got)
		}
		for i := range 20_001 {
			m.must(os.WriteFile(filepath.Join(m.ws, fmt.Sprint(i, ".env")), nil, 0o644))
		}
		m.refuses(sandbox, -32602, "the patterns match more than 20000 files, most of them in "+m.ws)
	})
}
