//go:build unix

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"execserver/internal/testkit"
	"execserver/internal/testkit/scripts"
	"execserver/internal/testkit/transcript"
)

// TestScripts runs the scripts in testdata/script. They may use the commands of testscript
// and these:
//
//	exits CODE PROGRAM [ARG...]   runs a program that must end with the code
//	awaits PATTERN PROGRAM [ARG...]  runs a program until it succeeds and prints the pattern
//	serve [ARG...]                starts exec-server, and sets $url, $address and $port
//	talk FILE                     holds the conversation of a transcript with it
//	end SIGNAL CODE               sends it a signal; it must end with the code
//	end stdin CODE                ends its standard input
//	logged PATTERN                waits for text on its standard error
//	mode FILE PERMISSIONS         checks the permissions of a file
//	certificate CERT KEY          makes a certificate for 127.0.0.1
//	configure FILE URL            makes URL the environment "box" of Codex, with the token "secret"
//	socket PATH                   leaves a socket behind that nobody listens on
//
// $free is an address at which nothing listens. After end, stdout and stderr are those of the server.
//
// With EXEC_SERVER_COMMAND, such as "codex exec-server", the test runs that command, and
// only the scripts whose names begin with "released": there both servers print the same.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	released := os.Getenv("EXEC_SERVER_COMMAND")
	if released != "" {
		files, _ = filepath.Glob("testdata/script/released*.txtar")
	}
	testscript.Run(t, testscript.Params{
		Files:               files,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(5 * testkit.Patience), // for all scripts together, on a busy machine
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":       scripts.Exits,
			"awaits":      scripts.Awaits,
			"serve":       scriptServe,
			"talk":        scriptTalk,
			"end":         scriptEnd,
			"logged":      scriptLogged,
			"mode":        scripts.Mode,
			"certificate": scripts.Certificate,
			"configure":   scripts.Configure,
			"socket":      scriptSocket,
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE"))
			env.Setenv("free", testkit.FreeAddress(t))
			env.Values[serverKey{}] = new(*program)
			if released != "" {
				return replaceProgram(env, released)
			}
			return nil
		},
	})
}

// replaceProgram makes the scripts run command as exec-server.
func replaceProgram(env *testscript.Env, command string) error {
	dir := filepath.Join(env.WorkDir, ".bin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	script := "#!/bin/sh\nexec " + command + ` "$@"` + "\n"
	env.Setenv("PATH", dir+string(filepath.ListSeparator)+env.Getenv("PATH"))
	return os.WriteFile(filepath.Join(dir, "exec-server"), []byte(script), 0o755)
}

// serverKey is where a script keeps its server.
type serverKey struct{}

func scriptServe(ts *testscript.TestScript, neg bool, args []string) {
	scripts.WantArgs(ts, !neg, "serve [ARG...]")
	if p := running(ts); p != nil {
		p.kill()
	}
	p, err := startServer(ts.MkAbs("."), []string{"HOME=" + ts.Getenv("HOME"), "TMPDIR=" + ts.Getenv("TMPDIR")}, args...)
	ts.Check(err)
	ts.Defer(p.kill)
	*ts.Value(serverKey{}).(**program) = p
	ts.Setenv("url", p.url)
	ts.Setenv("address", p.address())
	ts.Setenv("port", p.url[strings.LastIndexByte(p.url, ':')+1:])
}

func running(ts *testscript.TestScript) *program { return *ts.Value(serverKey{}).(**program) }

// reply bounds how long a reply may take. It is less than the interval of the server's
// pings, because a test must not depend on a ping.
const reply = 10 * time.Second

func scriptTalk(ts *testscript.TestScript, neg bool, args []string) {
	scripts.WantArgs(ts, !neg && len(args) == 1, "talk FILE")
	f, err := transcript.Parse([]byte("-- " + args[0] + " --\n" + ts.ReadFile(args[0])))
	ts.Check(err)
	dir, err := os.MkdirTemp(ts.MkAbs("."), "talk")
	ts.Check(err)
	ts.Check(f.Scenarios[0].Run(running(ts), transcript.Options{Dir: dir, Timeout: reply}))
}

var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "USR2": syscall.SIGUSR2, "PIPE": syscall.SIGPIPE,
}

func scriptEnd(ts *testscript.TestScript, neg bool, args []string) {
	scripts.WantArgs(ts, !neg && len(args) == 2, "end SIGNAL|stdin CODE")
	p := running(ts)
	if args[0] == "stdin" {
		ts.Check(p.stdin.Close())
	} else {
		ts.Check(p.signal(signals[args[0]]))
	}
	code, err := p.wait(promptly)
	ts.Check(err)
	fmt.Fprint(ts.Stdout(), p.stdout.all())
	fmt.Fprint(ts.Stderr(), p.stderr.all())
	if strconv.Itoa(code) != args[1] {
		ts.Fatalf("exit code %d, want %s", code, args[1])
	}
}

func scriptLogged(ts *testscript.TestScript, neg bool, args []string) {
	scripts.WantArgs(ts, !neg && len(args) == 1, "logged PATTERN")
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	stderr := running(ts).stderr
	if err := stderr.await(testkit.Patience, pattern.MatchString); err != nil {
		ts.Fatalf("%q is not logged: %v: %s", args[0], err, stderr.text())
	}
}

func scriptSocket(ts *testscript.TestScript, neg bool, args []string) {
	scripts.WantArgs(ts, !neg && len(args) == 1, "socket PATH")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: ts.MkAbs(args[0]), Net: "unix"})
	ts.Check(err)
	l.SetUnlinkOnClose(false)
	ts.Check(l.Close())
}
