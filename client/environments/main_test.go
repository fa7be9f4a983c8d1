//go:build unix

package environments_test

import (
	"fmt"
	"net"
	"os"
	"testing"

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
	testkit.VerifyMain(testkit.Ledger(m, "socket:", "socket:"))
}

// serve starts a server in this program, which ends with the test.
func serve(t testing.TB, opts *server.Options) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if opts.Auth == nil {
		opts.Auth = server.Unauthenticated
	}
	srv := server.New(opts)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.ServeWebSocket(l)
	}()
	t.Cleanup(func() {
		testkit.Shutdown(t, srv)
		<-done
	})
	return "ws://" + l.Addr().String()
}
