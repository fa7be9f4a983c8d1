//go:build unix

package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"

	"execserver/internal/testkit"
	"execserver/internal/testkit/scripts"
	"execserver/server"
)

func TestMain(m *testing.M) {
	server.RunHelper()
	testkit.Main()
	testscript.Main(m, map[string]func(){"exec-fleet": main})
}

// TestScripts runs the scripts in testdata/script. They may use the commands of testscript,
// those of package scripts, and these:
//
//	serve PROGRAM [ARG...]  starts a program that serves, and sets $url
//	end                     ends it
//	nats NKEY               starts a NATS server that admits the user with this public key, and sets $nats
func TestScripts(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, "./cmd/exec-server")
	build.Dir = filepath.Join("..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(5 * testkit.Patience), // for all scripts together, on a busy machine
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":       scripts.Exits,
			"awaits":      scripts.Awaits,
			"mode":        scripts.Mode,
			"certificate": scripts.Certificate,
			"configure":   scripts.Configure,
			"serve":       scriptServe,
			"end":         scriptEnd,
			"nats":        scriptNATS,
		},
		Setup: func(env *testscript.Env) error {
			env.Values[serverKey{}] = new(*exec.Cmd)
			env.Setenv("fleet", "nats://"+testkit.FreeAddress(t)) // for machines
			return nil
		},
	})
}

// serverKey is where a script keeps the program that serves.
type serverKey struct{}

func scriptServe(ts *testscript.TestScript, neg bool, args []string) {
	scripts.WantArgs(ts, !neg && len(args) > 0, "serve PROGRAM [ARG...]")
	command := exec.Command(args[0], args[1:]...)
	command.Dir = ts.MkAbs(".")
	command.Env = append(os.Environ(), "HOME="+ts.Getenv("HOME"), "TMPDIR="+ts.Getenv("TMPDIR"))
	var log testkit.Buffer
	command.Stderr = &log
	out, err := command.StdoutPipe()
	ts.Check(err)
	ts.Check(command.Start())
	ts.Defer(func() {
		_ = command.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = command.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		ts.Fatalf("%s does not serve: %v: %s", args[0], err, log.String())
	}
	*ts.Value(serverKey{}).(**exec.Cmd) = command
	ts.Setenv("url", strings.TrimSpace(url))
}

func scriptEnd(ts *testscript.TestScript, neg bool, args []string) {
	scripts.WantArgs(ts, !neg && len(args) == 0, "end")
	command := *ts.Value(serverKey{}).(**exec.Cmd)
	ts.Check(command.Process.Signal(syscall.SIGTERM))
	if err := command.Wait(); err != nil {
		ts.Fatalf("it ends with %v", err)
	}
}

func scriptNATS(ts *testscript.TestScript, neg bool, args []string) {
	scripts.WantArgs(ts, !neg && len(args) == 1, "nats NKEY")
	s, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: ts.MkAbs(".nats"), Nkeys: []*natsserver.NkeyUser{{Nkey: args[0]}},
	})
	ts.Check(err)
	s.Start()
	ts.Defer(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(testkit.Patience) {
		ts.Check(errors.New("the NATS server does not start"))
	}
	ts.Setenv("nats", "nats://"+s.Addr().String())
}
