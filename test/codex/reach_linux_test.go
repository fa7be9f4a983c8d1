package codex

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// otherMachine is a script of sshd that makes this machine another one: it has another
// name, and another directory in the place of the run's, with a home directory in it.
const otherMachine = `#!/bin/sh
export HOME=%[1]s/home
exec unshare --mount --uts sh -c 'mount --bind %[1]s/there %[1]s && hostname far-box && cd && exec sh -c "$SSH_ORIGINAL_COMMAND"'
`

// reach gives the client a machine far-box, that an ssh in its PATH leads to, beside an
// exec-server. It returns how this machine sees the other one's directory of the run.
func (r *run) reach(t testing.TB, program string) (there string) {
	t.Helper()
	testkit.Need(t, testkit.Root) // who alone can make another machine of this one
	script := filepath.Join(r.root, "sshd", "machine")
	r.write(t, "sshd/machine", fmt.Sprintf(otherMachine, r.root))
	there = filepath.Join(r.root, "there")
	if err := errors.Join(os.Chmod(script, 0o700), os.MkdirAll(filepath.Join(there, "home"), 0o700)); err != nil {
		t.Fatal(err)
	}
	sshd := testkit.StartSSHD(t, filepath.Dir(script), "ForceCommand "+script)
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, "bin/ssh", fmt.Sprintf("#!/bin/sh\nexec %s %s -o HostName=127.0.0.1 \"$@\"\n", ssh, strings.Join(sshd.Flags(sshd.Port()), " ")))
	if err := errors.Join(os.Chmod(filepath.Join(r.root, "bin", "ssh"), 0o700), os.Symlink(program, filepath.Join(r.root, "bin", "exec-server"))); err != nil {
		t.Fatal(err)
	}
	return there
}

// person has a person at the client's machine run a command line, and returns its output.
func (r *run) person(t testing.TB, line string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir, cmd.Env = r.work, r.env()
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%s: %v: %s", line, err, exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func startsPrograms(c client) bool { return c.stdio }

// TestAddedMachine has the client work on a machine that codex-config has added, after the
// check that codex-config prints.
func TestAddedMachine(t *testing.T) {
	play(t, []scenario{{
		name: "added machine",
		only: startsPrograms, onlyOurs: true,
		configure: func(t testing.TB, r *run, program string) {
			there := r.reach(t, program)
			if err := os.Mkdir(filepath.Join(there, filepath.Base(r.work)), 0o700); err != nil {
				t.Fatal(err)
			}
			check := r.person(t, "exec-server codex-config add box --ssh far-box")
			r.person(t, "exec-server connect ssh far-box </dev/null") // the first time: copies the program
			if got := r.person(t, check); got != "far-box\n" {
				t.Errorf("%s printed %q", check, got)
			}
		},
		model: responses.Script(
			responses.Say(shell("where", "hostname; pwd; cd; pwd")),
		),
		check: func(t *testing.T, r *run) {
			r.want(t, "where", 0, "far-box\n"+r.work+"\n"+r.root+"/home\n")
		},
	}})
}

// TestWorkspace has the client work in its directory on a machine that had no such
// directory. cp brings files there and back.
func TestWorkspace(t *testing.T) {
	var scenarios []scenario
	for _, way := range []struct{ name, remote, source string }{
		{"workspace", "", "work"},
		{"workspace elsewhere", "=~/project", "home/project"},
	} {
		there := func(r *run, name string) string { return filepath.Join(r.root, "there", way.source, name) }
		scenarios = append(scenarios, scenario{
			name: way.name,
			only: startsPrograms, onlyOurs: true,
			configure: func(t testing.TB, r *run, program string) {
				r.reach(t, program)
				r.write(t, "work/greeting", "hello\n")
				r.write(t, "work/sub/old", "old\n")
				r.person(t, "exec-server codex-config add box -- exec-server connect --workspace "+r.work+way.remote+" ssh far-box")
				r.person(t, "exec-server connect ssh far-box </dev/null") // the first time: copies the program
				r.person(t, "exec-server cp --on box greeting sub :"+r.work)
			},
			model: responses.Script(
				responses.Say(shell("read", "hostname; pwd; cat greeting sub/old")),
				responses.Say(shell("change", "echo changed >greeting && echo made >made && mkdir new && echo deep >new/file")),
			),
			check: func(t *testing.T, r *run) {
				r.want(t, "read", 0, "far-box\n"+r.work+"\nhello\nold\n")
				r.want(t, "change", 0, "")
				changed := map[string]string{"greeting": "changed\n", "made": "made\n", "new/file": "deep\n"}
				for name, content := range changed {
					if got, err := os.ReadFile(there(r, name)); string(got) != content {
						t.Errorf("%s there is %q: %v", name, got, err)
					}
					if got, err := os.ReadFile(filepath.Join(r.work, name)); string(got) == content {
						t.Errorf("%s has changed here before cp: %v", name, err)
					}
				}
				r.person(t, fmt.Sprintf("exec-server cp --on box :%[1]s/greeting :%[1]s/made :%[1]s/new .", r.work))
				for name, content := range changed {
					if got, err := os.ReadFile(filepath.Join(r.work, name)); string(got) != content {
						t.Errorf("after cp, %s is %q: %v", name, got, err)
					}
				}
			},
		})
	}
	play(t, scenarios)
}
