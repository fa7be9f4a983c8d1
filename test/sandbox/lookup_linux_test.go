package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
)

// narrow are policies that do not show what is in m.outside.
func (m *machine) narrow() map[string]object {
	return map[string]object{
		"not shown": m.policy("restricted", special("minimal", "read"), at(m.ws, "write")),
		"denied":    m.policy("restricted", special("root", "read"), at(m.ws, "write"), at(m.outside, "deny")),
	}
}

// TestStartTellsNothingOfOutside starts commands whose directory, program or interpreter the
// sandbox does not show. The answers must not depend on what is there.
func TestStartTellsNothingOfOutside(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.must(os.MkdirAll(m.outside+"/locked/dir", 0o700))
		m.executable(m.outside+"/program", []byte("#!/bin/sh\necho outside\n"))
		m.executable(m.outside+"/dir/tool", []byte("#!/bin/sh\necho outside\n"))
		m.own(m.outside)
		m.must(os.Chmod(m.outside+"/locked", 0))
		names := []string{"missing", "missing/below", "dir", "dir/missing", "file", "file/below", "program", "locked", "locked/dir"}
		for _, name := range names {
			script := filepath.Join(m.ws, "script-"+strings.ReplaceAll(name, "/", "-"))
			m.executable(script, []byte("#!"+m.outside+"/"+name+"\n"))
			m.must(os.Symlink(m.outside+"/"+name, m.ws+"/link-"+strings.ReplaceAll(name, "/", "-")))
		}
		for kind, start := range map[string]func(name, flat string) command{
			"directory":              func(name, _ string) command { return command{argv: []string{"/bin/true"}, dir: m.outside + "/" + name} },
			"directory through link": func(_, flat string) command { return command{argv: []string{"/bin/true"}, dir: m.ws + "/link-" + flat} },
			"program":                func(name, _ string) command { return command{argv: []string{m.outside + "/" + name}} },
			"relative program":       func(name, _ string) command { return command{argv: []string{"../outside/" + name}} },
			"program through link":   func(_, flat string) command { return command{argv: []string{"./link-" + flat}} },
			"program in PATH": func(name, _ string) command {
				return command{argv: []string{"tool"}, env: map[string]string{"PATH": m.outside + "/" + name}}
			},
			"name in PATH": func(name, _ string) command {
				return command{argv: []string{filepath.Base(name)}, env: map[string]string{"PATH": filepath.Dir(m.outside + "/" + name)}}
			},
			"interpreter": func(_, flat string) command { return command{argv: []string{"./script-" + flat}} },
		} {
			for policy, sandbox := range m.narrow() {
				answers := make(map[string][]string)
				for _, name := range names {
					flat := strings.ReplaceAll(name, "/", "-")
					c := start(name, flat)
					c.sandbox = sandbox
					_, _, err := m.begin(c)
					if err == nil {
						t.Errorf("%s, %s: %s has started", kind, policy, name)
						continue
					}
					sent := []string{
						m.outside + "/" + name, "../outside/" + name, "link-" + flat, "script-" + flat,
						filepath.Dir(m.outside + "/" + name), `"` + filepath.Base(name) + `"`,
					}
					text := err.Error()
					for _, path := range sent {
						text = strings.ReplaceAll(text, path, "SENT")
					}
					text = strings.ReplaceAll(text, `"SENT"`, "SENT")
					answers[text] = append(answers[text], name)
				}
				if len(answers) != 1 {
					t.Errorf("%s, %s: the answers differ: %q", kind, policy, answers)
				}
			}
		}
	})
}

// TestStartInForeignDirectory starts commands in a directory that another user keeps closed, and that
// the sandbox shows. Also the commands of root have no right to enter it, so they neither start there
// nor find out by the error what is in it.
func TestStartInForeignDirectory(t *testing.T) {
	testkit.System(t, testkit.Root)
	everywhere(t, func(t *testing.T, m *machine) {
		closed := filepath.Join(m.shared(), "closed")
		m.must(os.MkdirAll(closed+"/dir", 0o755))
		m.must(os.Chown(closed, foreigner, foreigner))
		m.must(os.Chmod(closed, 0o700))
		for _, name := range []string{"", "/dir", "/missing"} {
			_, _, err := m.begin(command{argv: []string{"/bin/true"}, dir: closed + name, sandbox: m.policy("restricted", special("root", "read"))})
			want := `working directory "` + closed + name + `" in the sandbox: permission denied (os error 13)`
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
		}
	})
}

// TestHiddenProgramDoesNotWin has a program in two directories of PATH, of which the sandbox
// shows the second.
func TestHiddenProgramDoesNotWin(t *testing.T) {
	test := func(t *testing.T, m *machine, policies map[string]object) {
		m.must(os.Mkdir(m.ws+"/bin", 0o755))
		m.executable(m.outside+"/tool", []byte("#!/bin/sh\necho outside\n"))
		m.executable(m.ws+"/bin/tool", []byte("#!/bin/sh\necho inside $0\n"))
		for name, sandbox := range policies {
			path := m.outside + ":" + m.ws + "/bin:/usr/bin"
			p := m.run(command{argv: []string{"tool"}, env: map[string]string{"PATH": path}, sandbox: sandbox})
			if got, want := m.written(p), "inside "+m.ws+"/bin/tool\n"; got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	everywhere(t, func(t *testing.T, m *machine) { test(t, m, m.narrow()) })
	t.Run("landlock", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, user{}, "landlock")
		test(t, m, map[string]object{"read": m.policy("restricted", special("minimal", "read"), at(m.ws, "read"))})
	})
}

// TestStartErrorsInSandbox checks that errors about what the sandbox shows are the usual ones.
func TestStartErrorsInSandbox(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.executable(m.ws+"/script", []byte("#!/no/interpreter\n"))
		for policy, sandbox := range m.narrow() {
			for _, test := range []struct {
				name string
				command
				want string
			}{
				{"missing directory", command{argv: []string{"true"}, dir: m.ws + "/missing"}, `working directory "` + m.ws + `/missing" in the sandbox: no such file or directory (os error 2)`},
				{"no directory", command{argv: []string{"true"}, dir: m.ws + "/file"}, `working directory "` + m.ws + `/file" in the sandbox: not a directory (os error 20)`},
				{"missing program", command{argv: []string{"./missing"}}, `program in the sandbox: no such file or directory (os error 2)`},
				{"not executable", command{argv: []string{m.ws + "/file"}}, `program in the sandbox: permission denied (os error 13)`},
				{"directory", command{argv: []string{"./dir"}}, `program in the sandbox: permission denied (os error 13)`},
				{"not in PATH", command{argv: []string{"no-such-program"}}, `program not found in PATH "/usr/bin:/bin" in the sandbox: no such file or directory (os error 2)`},
				{"not executable in PATH", command{argv: []string{"file"}, env: map[string]string{"PATH": m.ws}}, `program, in PATH "` + m.ws + `" in the sandbox: permission denied (os error 13)`},
				{"interpreter", command{argv: []string{"./script"}}, `the interpreter or loader that ./script needs in the sandbox: no such file or directory (os error 2)`},
			} {
				test.sandbox = sandbox
				_, _, err := m.begin(test.command)
				if want := `cannot start "` + test.argv[0] + `": ` + test.want; err == nil || !strings.HasSuffix(err.Error(), want) {
					t.Errorf("%s, %s: %v, want %s", policy, test.name, err, want)
				}
			}
		}
	})
}

// TestReadTellsNothingOfHidden reads files in a directory that every sandbox hides, under a policy
// that lets everything else be read.
func TestReadTellsNothingOfHidden(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.must(os.WriteFile(m.state+"/file", nil, 0o644))
		m.own(m.state + "/file")
		for _, method := range []string{"fs/readFile", "fs/getMetadata"} {
			answers := make(map[string][]string)
			for _, name := range []string{"file", "file/below", "missing", "missing/below"} {
				err := m.call(method, object{"path": uri(m.state + "/" + name), "sandbox": m.workspaceWrite()}, nil)
				text := "read"
				if err != nil {
					text = strings.ReplaceAll(err.Error(), m.state+"/"+name, "SENT")
				}
				answers[text] = append(answers[text], name)
			}
			if len(answers) != 1 {
				t.Errorf("%s: the answers differ: %q", method, answers)
			}
		}
	})
}
