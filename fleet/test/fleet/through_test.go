//go:build linux

package fleet

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"execserver/internal/testkit"
)

// serveThrough is a program that serves as "exec-server --listen ws://..." does, but through
// a gateway, for the tests that EXEC_SERVER_COMMAND tells which server to test:
//
//	make build && cd fleet && go test -c -o fleet.test ./test/fleet && cd ..
//	EXEC_SERVER_EXACT=1 EXEC_SERVER_COMMAND="env EXEC_SERVER_TEST_FLEET=serve $PWD/fleet/fleet.test $PWD/bin/exec-fleet" go test ./server -run OfCommand/websocket
//
// Some of those fail with the program alone, too: it has flags that they do not expect.
func serveThrough() {
	program, rest := os.Args[1], os.Args[2:]
	url := "ws://127.0.0.1:0"
	var flags []string
	for i := 0; i < len(rest); i++ {
		switch {
		case rest[i] == "--listen" && i+1 < len(rest):
			i++
			url = rest[i]
		case strings.HasPrefix(rest[i], "--listen="):
			url = strings.TrimPrefix(rest[i], "--listen=")
		default:
			flags = append(flags, rest[i])
		}
	}
	runtime.LockOSThread() // the programs die with it
	if !strings.HasPrefix(url, "ws://") {
		program = filepath.Join(filepath.Dir(program), "exec-server")
		exit(syscall.Exec(program, append([]string{program, "--listen", url}, flags...), os.Environ()))
	}
	data, err := os.MkdirTemp("", "fleet-gateway")
	exit(err)
	defer os.RemoveAll(data)
	gateway, address := child(data, program, "gateway", "--listen", url, "--data", filepath.Join(data, "gateway"), "--fleet-listen", "nats://127.0.0.1:0")
	token, err := exec.Command(program, "token", "--gateway", strings.TrimSpace(address), "box").Output()
	exit(err)
	secret := filepath.Join(data, "token")
	exit(os.WriteFile(secret, token, 0o600))
	machine, _ := child(data, program, append([]string{
		"join", "--name", "box", "--fleet", fleetOf(gateway), "--token-file", secret,
		"--without=supervisor", // which would not die with this program
	}, flags...)...)
	url = strings.TrimSpace(address) + "/env/box"
	fmt.Println(url)
	fmt.Fprintln(os.Stderr, "exec-server listening on "+url)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	ended := make(chan struct{}, 1)
	go func() {
		_ = machine.Wait()
		ended <- struct{}{}
	}()
	select {
	case <-signals:
		_ = machine.Process.Signal(syscall.SIGTERM)
		<-ended
	case <-ended:
	}
	_ = gateway.Process.Signal(syscall.SIGTERM)
	_ = gateway.Wait()
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child starts a program with its log in a directory, and returns the first line that it
// prints.
func child(dir, program string, args ...string) (*exec.Cmd, string) {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.CreateTemp(dir, "log")
	exit(err)
	cmd.Stderr = log
	_, err = cmd.StdinPipe() // it ends with this program
	exit(err)
	out, err := cmd.StdoutPipe()
	exit(err)
	exit(cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		text, _ := os.ReadFile(log.Name()) // there may be none
		fmt.Fprintf(os.Stderr, "%s: %v\n%s", args, err, text)
		os.Exit(1)
	}
	return cmd, line
}

// fleetOf returns where machines join a gateway, as its log says.
func fleetOf(gateway *exec.Cmd) string {
	log := gateway.Stderr.(*os.File).Name()
	for begun := time.Now(); time.Since(begun) < testkit.Patience; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(log)
		exit(err)
		if _, rest, ok := strings.Cut(string(text), "fleet on "); ok {
			url, _, _ := strings.Cut(rest, "\n")
			return url
		}
	}
	exit(fmt.Errorf("the gateway does not say where machines join"))
	return ""
}
