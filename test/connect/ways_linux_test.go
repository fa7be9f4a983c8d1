package connect

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// standIn takes the place of docker, podman and kubectl: it writes down its arguments and
// runs the words from sh on, as if it were in the container.
const standIn = `#!/bin/sh
echo "$0 is a stand-in of a test, and leads nowhere" >&2
printf '%s\n' "$@" >"$RECORD"
while [ "$1" != sh ]; do shift; done
export HOME="$FAR_HOME"
exec "$@"
`

// TestWays looks at the command lines of the ways that are no ssh, and connects by their
// stand-ins.
func TestWays(t *testing.T) {
	for _, way := range []struct{ words, args string }{
		{"docker app", "exec -i app sh -c"},
		{"docker -u 1000 app", "exec -i -u 1000 app sh -c"},
		{"podman app", "exec -i app sh -c"},
		{"kubectl web-0 -n shop -c app", "exec -i web-0 -n shop -c app -- sh -c"},
	} {
		t.Run(way.words, func(t *testing.T) {
			t.Parallel()
			dir, far := t.TempDir(), t.TempDir()
			words := strings.Fields(way.words)
			must(t, os.WriteFile(filepath.Join(dir, words[0]), []byte(standIn), 0o755))
			record := filepath.Join(dir, "record")
			for _, first := range []bool{true, false} {
				connect := local(t, append([]string{"connect", "--ephemeral"}, words...)...)
				connect.Env = []string{"HOME=" + connect.Dir, "PATH=" + dir + ":" + os.Getenv("PATH"), "RECORD=" + record, "FAR_HOME=" + far}
				if said := hello(t, connect); strings.Contains(said, copying) != first {
					t.Errorf("connect said %q", said)
				}
				text, err := os.ReadFile(record)
				must(t, err)
				args := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
				if want := strings.Fields(way.args); len(args) != len(want)+1 || !slices.Equal(args[:len(want)], want) {
					t.Errorf("%s got the arguments %q", words[0], args)
				}
			}
		})
	}
}

// TestAnyCommand connects by commands whose input is a shell, of which some read more of it
// than they need.
func TestAnyCommand(t *testing.T) {
	for _, words := range []string{"sh", "bash", "dash", "busybox sh", "env A=b sh", "sh -c sh", "tcsh"} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			connect := local(t, append([]string{"connect", "--ephemeral", "--"}, strings.Fields(words)...)...)
			if _, err := exec.LookPath(strings.Fields(words)[0]); err != nil {
				t.Skipf("it is not installed: %v", err)
			}
			if said := hello(t, connect); !strings.Contains(said, copying) {
				t.Errorf("connect said %q", said)
			}
		})
	}
}
