//go:build unix

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"execserver/client"
	"execserver/client/local"
	"execserver/internal/testkit"
	"execserver/server"
	"execserver/transport"
)

// serveVariable makes the test program a server on stdio.
const serveVariable = "EXEC_SERVER_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) != "" {
		os.Unsetenv(serveVariable)
		err := server.New(nil).ServeOnly(transport.NewLines("stdio", os.Stdin, os.Stdout, os.Stdin.Close, 0))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(0)
	}
	testkit.Main()
	testkit.DefaultSignals()
	os.Setenv(markVariable, mark)
	// The threads that start children live as long as the program, and so does the
	// socket that asks them to.
	tests := testkit.Ledger(testkit.Childless(m, markVariable, mark), "socket:", "socket:")
	testkit.VerifyMain(tests)
}

// markVariable marks what the tests start, whoever its parent is: it is in the
// environment of every command but those that are to have none.
const markVariable = "EXEC_SERVER_TEST_MARKED"

var mark = strconv.Itoa(os.Getpid())

// place is one way to an Environment.
type place struct {
	name string
	// open opens one; it skips the test when that cannot be done here.
	open func(t testing.TB, opts *client.Options) *client.Environment
	// codex is the released server, which lacks what ours has beyond it.
	codex bool
}

var places = []place{
	{name: "local", open: openLocal},
	{name: "ws", open: openWebSocket},
	{name: "unix", open: openUnix},
	{name: "stdio", open: openStdio},
	{name: "codex-ws", open: openCodexWebSocket, codex: true},
	{name: "codex-stdio", open: openCodexStdio, codex: true},
	{name: "command-ws", open: openCommandWebSocket},
	{name: "command-stdio", open: openCommandStdio},
}

// everywhere runs a test in every place.
func everywhere(t *testing.T, run func(t *testing.T, env *client.Environment, p place)) {
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			run(t, p.open(t, nil), p)
		})
	}
}

// opened closes an Environment with the test.
func opened(t testing.TB, env *client.Environment, err error) *client.Environment {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	return env
}

func background(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func openLocal(t testing.TB, opts *client.Options) *client.Environment {
	env, err := local.New(opts)
	return opened(t, env, err)
}

func openWebSocket(t testing.TB, opts *client.Options) *client.Environment {
	env, err := client.Dial(background(t), serveWebSocket(t, nil), opts)
	return opened(t, env, err)
}

// serve starts a server in this program, which ends with the test.
func serve(t testing.TB, opts *server.Options, listen func() (net.Listener, error), run func(*server.Server, net.Listener) error) {
	t.Helper()
	srv := server.New(opts)
	l, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(srv, l)
	}()
	t.Cleanup(func() {
		testkit.Shutdown(t, srv)
		<-done
	})
}

func serveWebSocket(t testing.TB, opts *server.Options) (url string) {
	if opts == nil {
		opts = new(server.Options)
	}
	if opts.Auth == nil {
		opts.Auth = server.Unauthenticated
	}
	serve(t, opts, func() (net.Listener, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			url = "ws://" + l.Addr().String()
		}
		return l, err
	}, (*server.Server).ServeWebSocket)
	return url
}

func openUnix(t testing.TB, opts *client.Options) *client.Environment {
	env, err := client.Dial(background(t), serveUnix(t, nil), opts)
	return opened(t, env, err)
}

func serveUnix(t testing.TB, opts *server.Options) (url string) {
	path := filepath.Join(testkit.SocketDir(t), "s")
	serve(t, opts, func() (net.Listener, error) { return net.Listen("unix", path) }, (*server.Server).ServeUnix)
	return "unix://" + path
}

func openStdio(t testing.TB, opts *client.Options) *client.Environment {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), serveVariable+"=1", "GORACE=atexit_sleep_ms=0")
	env, err := client.Launch(background(t), command, opts)
	return opened(t, env, err)
}

func codexCommand(t testing.TB, listen string) *exec.Cmd {
	command := exec.Command(testkit.Codex(t), "exec-server", "--listen", listen)
	command.Env = append(os.Environ(), "CODEX_HOME="+t.TempDir())
	return command
}

func openCodexStdio(t testing.TB, opts *client.Options) *client.Environment {
	env, err := client.Launch(background(t), codexCommand(t, "stdio"), opts)
	return opened(t, env, err)
}

func openCodexWebSocket(t testing.TB, opts *client.Options) *client.Environment {
	env, err := client.Dial(background(t), testkit.ServeCommand(t, codexCommand(t, "ws://127.0.0.1:0")), opts)
	return opened(t, env, err)
}

// otherCommand is another server like ours: what EXEC_SERVER_COMMAND says, without
// --listen.
func otherCommand(t testing.TB, listen string) *exec.Cmd {
	t.Helper()
	words := strings.Fields(os.Getenv("EXEC_SERVER_COMMAND"))
	if len(words) == 0 {
		t.Skip("EXEC_SERVER_COMMAND names no other server")
	}
	return exec.Command(words[0], append(words[1:len(words):len(words)], "--listen", listen)...)
}

func openCommandStdio(t testing.TB, opts *client.Options) *client.Environment {
	env, err := client.Launch(background(t), otherCommand(t, "stdio"), opts)
	return opened(t, env, err)
}

func openCommandWebSocket(t testing.TB, opts *client.Options) *client.Environment {
	env, err := client.Dial(background(t), testkit.ServeCommand(t, otherCommand(t, "ws://127.0.0.1:0")), opts)
	return opened(t, env, err)
}

// child makes the command of a child program of the test kit.
func child(env *client.Environment, name string, args ...string) *client.Cmd {
	return childContext(context.Background(), env, name, args...)
}

func childContext(ctx context.Context, env *client.Environment, name string, args ...string) *client.Cmd {
	argv, vars := testkit.Child(name, args...)
	c := env.Command(ctx, argv[0], argv[1:]...)
	c.Env = []string{markVariable + "=" + mark}
	for name, value := range vars {
		c.Env = append(c.Env, name+"="+value)
	}
	return c
}

// needs skips what the place's server cannot do, once it is certain that the
// client says so.
func needs(t *testing.T, env *client.Environment, capability string, try func() error) {
	t.Helper()
	if env.Info().Capabilities[capability] {
		return
	}
	err := try()
	unsupported, ok := errors.AsType[*client.UnsupportedError](err)
	if !ok || unsupported.Capability != capability || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("without %s: %v", capability, err)
	}
	t.Skipf("the server lacks %s", capability)
}

// startPiped starts a command with pipes to its stdin and from its stdout.
func startPiped(t testing.TB, c *client.Cmd) (stdin io.WriteCloser, stdout io.ReadCloser) {
	t.Helper()
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if stdout, err = c.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return stdin, stdout
}
