//go:build unix

package main

import (
	"bytes"
	"net"
	"os/exec"
	"syscall"
	"testing"
)

// TestSubcommandEndsBySignal checks that a signal ends a subcommand without a word,
// although its server does not answer.
func TestSubcommandEndsBySignal(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		command := exec.Command("exec-server", "ls", "--url", "ws://"+listener.Addr().String())
		var out bytes.Buffer
		command.Stdout, command.Stderr = &out, &out
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		conn, err := listener.Accept() // and stay silent
		if err != nil {
			t.Fatal(err)
		}
		_ = command.Process.Signal(sig)
		_ = command.Wait()
		_ = conn.Close()
		if code := command.ProcessState.ExitCode(); code != 128+int(sig) || out.Len() > 0 {
			t.Errorf("%v: exit code %d, %q", sig, code, &out)
		}
	}
}
