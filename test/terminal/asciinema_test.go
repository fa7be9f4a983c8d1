//go:build unix

package terminal

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
)

// TestAsciinema has the asciinema that distributions package play the recordings of a
// terminal and of pipes.
func TestAsciinema(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "asciinema")
	_, address := startServer(t, "--record", filepath.Join(t.TempDir(), "recordings"))
	s := newScreen(t)
	program := func(args ...string) ([]byte, error) {
		return exec.Command(filepath.Join(programs, "exec-server"), args...).Output()
	}
	for name, flags := range map[string]string{"terminal": "-dt", "pipes": "-d"} {
		if _, err := program("run", flags, "--name", name, "--url", "ws://"+address, "--", "sh", "-c", "printf 'on \\033[7m"+name+"\\n\\033[m'; exit 3"); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(s.dir, name+".cast")
		testkit.WaitFor(t, testkit.Patience, func() error { // nothing says when a recording is complete
			cast, err := program("cast", "get", "--url", "ws://"+address, name)
			if err == nil && !strings.HasSuffix(string(cast), `"m", "exit status 3"]`+"\n") {
				err = fmt.Errorf("the recording is %s", cast)
			}
			if err != nil {
				return err
			}
			return os.WriteFile(file, cast, 0o600)
		})
		s.line("LC_ALL=C.UTF-8 asciinema cat " + name + ".cast >text") // it needs a terminal all the same
		s.prompt("local$")
		if got, err := os.ReadFile(filepath.Join(s.dir, "text")); err != nil || string(got) != "on \x1b[7m"+name+"\r\n\x1b[m" {
			t.Errorf("asciinema cat prints %q: %v", got, err)
		}
		s.line("LC_ALL=C.UTF-8 asciinema play --speed 10 " + name + ".cast")
		s.await("\non " + name)
		s.prompt("local$")
	}
	s.isLocal()
}
