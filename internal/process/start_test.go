//go:build unix

package process_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/internal/process"
	"execserver/protocol"
)

func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := file("plain", "", 0o644)
	noInterpreter := file("nointerpreter", "#!/nonexistent/interpreter\n", 0o755)
	noFormat := file("noformat", "no program\n", 0o755)
	env := map[string]string{"PATH": dir + ":/nonexistent"}
	for _, test := range []struct {
		name string
		spec process.Spec
		want string
		err  error
	}{
		{"no argv", process.Spec{Dir: "/"}, `cannot start "": argv must not be empty`, nil},
		{"empty program", process.Spec{Argv: []string{""}, Dir: "/"}, `cannot start "": missing program: argv[0] is empty`, nil},
		{"not in PATH", process.Spec{Argv: []string{"nope"}, Dir: "/", Env: env}, `cannot start "nope": program not found in PATH "` + dir + `:/nonexistent": no such file or directory (os error 2)`, syscall.ENOENT},
		{"missing path", process.Spec{Argv: []string{"/nope"}, Dir: "/"}, `cannot start "/nope": program: no such file or directory (os error 2)`, syscall.ENOENT},
		{"missing directory", process.Spec{Argv: []string{"true"}, Dir: "/nope"}, `cannot start "true": working directory "/nope": no such file or directory (os error 2)`, syscall.ENOENT},
		{"file as directory", process.Spec{Argv: []string{"true"}, Dir: plain}, `cannot start "true": working directory "` + plain + `": not a directory (os error 20)`, syscall.ENOTDIR},
		{"not executable", process.Spec{Argv: []string{plain}, Dir: "/"}, `cannot start "` + plain + `": program: permission denied (os error 13)`, syscall.EACCES},
		{"not executable in PATH", process.Spec{Argv: []string{"plain"}, Dir: "/", Env: env}, `cannot start "plain": program, in PATH "` + dir + `:/nonexistent": permission denied (os error 13)`, syscall.EACCES},
		{"directory", process.Spec{Argv: []string{"/tmp"}, Dir: "/"}, `cannot start "/tmp": program: permission denied (os error 13)`, syscall.EACCES},
		{"no interpreter", process.Spec{Argv: []string{noInterpreter}, Dir: "/"}, `cannot start "` + noInterpreter + `": the interpreter or loader that ` + noInterpreter + ` needs: no such file or directory (os error 2)`, syscall.ENOENT},
		{"no format", process.Spec{Argv: []string{noFormat}, Dir: "/"}, `cannot start "` + noFormat + `": execute ` + noFormat + `: exec format error (os error 8)`, syscall.ENOEXEC},
		{"long argument", process.Spec{Argv: []string{"true", strings.Repeat("a", 131_072)}, Dir: "/"}, `cannot start "true": argument 1 is 131072 bytes long, the limit is 131071: argument list too long (os error 7)`, syscall.E2BIG},
		{"long arg0", process.Spec{Argv: []string{"true"}, Arg0: new(strings.Repeat("a", 131_072)), Dir: "/"}, `cannot start "true": argument 0 is 131072 bytes long, the limit is 131071: argument list too long (os error 7)`, syscall.E2BIG},
		{"long variable", process.Spec{Argv: []string{"true"}, Dir: "/", Env: map[string]string{"A": strings.Repeat("a", 131_070)}}, `cannot start "true": the variable "A" is 131072 bytes long with its name, the limit is 131071: argument list too long (os error 7)`, syscall.E2BIG},
		{"many arguments", process.Spec{Argv: append([]string{"true"}, make([]string, 700_000)...), Dir: "/"}, `cannot start "true": arguments and environment take 6300013 bytes, the limit is 6291456: argument list too long (os error 7)`, syscall.E2BIG},
		{"long name", process.Spec{Argv: []string{strings.Repeat("a", 4096)}, Dir: "/"}, `cannot start "` + strings.Repeat("a", 256) + `…": the name of the program is 4096 bytes long, the limit is 4095: file name too long (os error 36)`, syscall.ENAMETOOLONG},
		{"long PATH", process.Spec{Argv: []string{"nope"}, Dir: "/", Env: map[string]string{"PATH": strings.Repeat(":", 4096)}}, `cannot start "nope": PATH has 4097 directories, the limit is 4096`, nil},
		{"NUL", process.Spec{Argv: []string{"true", "a\x00b"}, Dir: "/"}, `cannot start "true": nul byte found in provided data`, nil},
		{"NUL in environment", process.Spec{Argv: []string{"true"}, Dir: "/", Env: map[string]string{"A": "\x00"}}, `cannot start "true": nul byte found in provided data`, nil},
	} {
		for _, tty := range []bool{false, true} {
			test.spec.TTY = tty
			_, err := process.Start(test.spec, nil)
			var typed *process.Error
			switch {
			case !errors.As(err, &typed):
				t.Errorf("%s: %v is not an *Error", test.name, err)
			case err.Error() != test.want:
				t.Errorf("%s, tty=%v:\n got %s\nwant %s", test.name, tty, err, test.want)
			case test.err != nil && !errors.Is(err, test.err):
				t.Errorf("%s: not %v", test.name, test.err)
			}
		}
	}
}

func TestLookup(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"bin", "other"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		script := "#!/bin/sh\necho " + d + " $0\n"
		if err := os.WriteFile(filepath.Join(dir, d, "prog"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "run"), []byte("#!/bin/sh\necho run $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	zed := "zed"
	for _, test := range []struct {
		name string
		spec process.Spec
		want string
	}{
		{"relative PATH entry", process.Spec{Argv: []string{"prog"}, Env: map[string]string{"PATH": "nope:bin"}}, "bin bin/prog"},
		{"this directory in PATH", process.Spec{Argv: []string{"run"}, Env: map[string]string{"PATH": "nope::bin"}}, "run run"},
		{"order of PATH", process.Spec{Argv: []string{"prog"}, Env: map[string]string{"PATH": dir + "/other:" + dir + "/bin"}}, "other " + dir + "/other/prog"},
		{"relative path", process.Spec{Argv: []string{"bin/prog"}}, "bin bin/prog"},
		{"relative path from here", process.Spec{Argv: []string{"./run"}}, "run ./run"},
		{"default PATH", process.Spec{Argv: []string{"sh", "-c", "echo found"}}, "found"},
		{"arg0", process.Spec{Argv: []string{"/bin/sh", "-c", "echo $0"}, Arg0: &zed}, "zed"},
	} {
		for _, tty := range []bool{false, true} {
			test.spec.TTY, test.spec.Dir = tty, dir
			s := follow(t, start(t, test.spec, nil))
			if got := strings.TrimSpace(s.All); got != test.want {
				t.Errorf("%s, tty=%v: %q, want %q", test.name, tty, got, test.want)
			}
		}
	}
}

// The child is a session leader with nothing but its three streams, and with
// default signals. Descriptor 3 is that of ls itself, on the directory it lists.
func TestChildSetup(t *testing.T) {
	script := `
		set -- $(cat /proc/$$/stat | sed 's/.*) //')
		echo leader $([ $$ = $3 ] && [ $$ = $4 ] && echo yes || echo no $$ $3 $4)
		echo terminal $([ $5 != 0 ] && echo yes || echo no)
		ls -1 /proc/self/fd
		grep -E "Sig(Blk|Ign)" /proc/self/status
		stty size 2>/dev/null`
	// Something that must not be inherited.
	extra, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	for _, tty := range []bool{false, true} {
		spec := shell(script)
		spec.TTY = tty
		got := strings.ReplaceAll(follow(t, start(t, spec, nil)).All, "\r", "")
		want := "leader yes\nterminal no\n0\n1\n2\n3\nSigBlk:\t0000000000000000\n" + ignoredSignals(t) + "\n"
		if tty {
			want = strings.Replace(want, "terminal no", "terminal yes", 1) + "24 80\n"
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("tty=%v (-want +got):\n%s", tty, diff)
		}
	}
}

// ignoredSignals is the line of those that this test was itself started with,
// which no exec changes.
func ignoredSignals(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "SigIgn:") {
			return strings.TrimSpace(line)
		}
	}
	t.Fatal("no SigIgn line")
	return ""
}

func TestEnvironment(t *testing.T) {
	inherited := []string{
		"PATH=/bin", "HOME=/h", "lang=C", "TERM=x", "MONKEY=1", "A_TOKEN=2", "MySecret=3", "USERNAME=u",
		"openai_identity_token_file=4", "CODEX_X=5", "TZ=UTC",
	}
	none := map[string]string{}
	for _, test := range []struct {
		name   string
		policy *protocol.EnvPolicy
		env    map[string]string
		want   map[string]string
	}{
		{"no policy", nil, map[string]string{"A": "1"}, map[string]string{"A": "1"}},
		{"no policy removes credentials", nil, map[string]string{"NODE_REPL_AUTH_TOKEN": "1", "node_repl_auth_token": "2", "API_KEY": "3"}, map[string]string{"API_KEY": "3"}},
		{"none", &protocol.EnvPolicy{Inherit: "none"}, map[string]string{"A": "1"}, map[string]string{"A": "1"}},
		{"core", &protocol.EnvPolicy{Inherit: "core"}, none, map[string]string{"PATH": "/bin", "HOME": "/h", "lang": "C"}},
		{
			"all", &protocol.EnvPolicy{Inherit: "all"}, none,
			map[string]string{"PATH": "/bin", "HOME": "/h", "lang": "C", "TERM": "x", "USERNAME": "u", "CODEX_X": "5", "TZ": "UTC"},
		},
		{
			"ignore default excludes", &protocol.EnvPolicy{Inherit: "all", IgnoreDefaultExcludes: true, Exclude: []string{"p*", "codex_?", "*E"}}, none,
			map[string]string{"lang": "C", "TERM": "x", "MONKEY": "1", "A_TOKEN": "2", "MySecret": "3", "TZ": "UTC"},
		},
		{
			"no classes in patterns", &protocol.EnvPolicy{Inherit: "all", Exclude: []string{"[P]ATH"}, IncludeOnly: []string{"PATH"}}, none,
			map[string]string{"PATH": "/bin"},
		},
		{
			"set is not excluded but must be included", &protocol.EnvPolicy{Inherit: "none", Set: map[string]string{"X_KEY": "1", "Y": "2"}, Exclude: []string{"*"}, IncludeOnly: []string{"x*"}},
			map[string]string{"Z": "3"},
			map[string]string{"X_KEY": "1", "Z": "3"},
		},
		{
			"env wins", &protocol.EnvPolicy{Inherit: "core", Set: map[string]string{"HOME": "/s"}},
			map[string]string{"HOME": "/e"},
			map[string]string{"PATH": "/bin", "HOME": "/e", "lang": "C"},
		},
		{"odd names", nil, map[string]string{"": "empty", "A=B": "c"}, map[string]string{"": "empty", "A=B": "c"}},
	} {
		got, err := process.Environment(inherited, test.policy, test.env)
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", test.name, err, diff)
		}
	}
}

// The work for the patterns of a policy is bounded, and so is the number of patterns and
// names that are empty.
func TestPatternsAreBounded(t *testing.T) {
	names := make(map[string]string)
	for i := range 10_000 {
		names[strconv.Itoa(i)] = ""
	}
	for name, policy := range map[string]*protocol.EnvPolicy{
		"a long pattern and a long name": {Inherit: "none", Set: map[string]string{strings.Repeat("a", 100_000): ""}, IncludeOnly: []string{"*" + strings.Repeat("a", 50_000) + "b"}},
		"many of both":                   {Inherit: "none", Set: names, IncludeOnly: make([]string, 10_000)},
		"excluded":                       {Inherit: "all", Exclude: []string{strings.Repeat("*", 70_000_000)}},
	} {
		_, err := process.Environment([]string{"A=1"}, policy, nil)
		if !errors.Is(err, protocol.ErrInvalidParams) || !strings.Contains(err.Error(), "; the limit is 67108864") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSearchEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client is gone"))
	spec := process.Spec{Argv: []string{"true"}, Dir: "/"}
	_, err := process.Start(spec, &process.Options{Context: ctx})
	if want := `cannot start "true": search in PATH stopped: the client is gone`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestEnvironmentReachesTheChild(t *testing.T) {
	spec := process.Spec{Argv: []string{"/usr/bin/env"}, Env: map[string]string{"B": "2", "A": "1", "X=Y": "z"}}
	if got, want := follow(t, start(t, spec, nil)).All, "A=1\nB=2\nX=Y=z\n"; got != want {
		t.Errorf("environment %q, want %q", got, want)
	}
}
