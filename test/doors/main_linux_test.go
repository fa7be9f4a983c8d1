package doors

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// programs is a directory with the server and this program, which every user can execute.
var programs string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "attack" {
		attack(os.Args[2:])
		return
	}
	if len(os.Args) > 3 && os.Args[1] == "limited" {
		fmt.Fprintln(os.Stderr, limited(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	if len(os.Args) > 2 && os.Args[1] == "squat" {
		squat(os.Args[2])
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "hidden" {
		hide()
		fmt.Println("hidden")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "judge" {
		judge()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "flood" {
		flood(os.Args[2:])
		return
	}
	testkit.SystemMain()
	testkit.DefaultSignals()
	var err error
	if programs, err = makePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testkit.VerifyMainIn(programs, m)
}

func makePrograms() (dir string, err error) {
	if dir, err = os.MkdirTemp("/tmp", "doors-"); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	if err := testkit.BuildProgram(dir + "/exec-server"); err != nil {
		return dir, err
	}
	self, err := os.Executable()
	if err != nil {
		return dir, err
	}
	content, err := os.ReadFile(self)
	if err != nil {
		return dir, err
	}
	return dir, os.WriteFile(dir+"/attacker", content, 0o755)
}

// users returns the users to run a server as. Only root can run it as another user.
func users() map[string]int {
	if os.Geteuid() == 0 {
		return map[string]int{"root": 0, "ordinary": ordinary}
	}
	return map[string]int{"self": os.Geteuid()}
}

// Users that do not exist.
const (
	ordinary = 61234
	another  = 61235
)

// as makes a command run as a user.
func as(uid int, cmd *exec.Cmd) *exec.Cmd {
	cmd.Dir = "/"
	if uid != os.Geteuid() {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = new(syscall.SysProcAttr)
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return cmd
}

// daemon is a running server.
type daemon struct {
	url, address string
	pid, uid     int
	env          []string // what its user has in the environment
	log          *testkit.Buffer
}

// serve starts a server as a user. The server ends with the test.
func serve(t *testing.T, uid int, args ...string) *daemon {
	t.Helper()
	return launch(t, uid, exec.Command(programs+"/exec-server", args...))
}

// serveLimited starts a server with a limit on descriptors, or with the limit of this
// program if descriptors is empty.
func serveLimited(t *testing.T, descriptors []string, args ...string) *daemon {
	t.Helper()
	if len(descriptors) == 0 {
		return serve(t, os.Geteuid(), args...)
	}
	shell := []string{"-c", "ulimit -n " + descriptors[0] + ` && exec "$0" "$@"`, programs + "/exec-server"}
	return launch(t, os.Geteuid(), exec.Command("/bin/sh", append(shell, args...)...))
}

func launch(t *testing.T, uid int, cmd *exec.Cmd) *daemon {
	t.Helper()
	return launchIn(t, uid, as(uid, cmd))
}

// launchIn is like launch for a command that becomes the user itself.
func launchIn(t *testing.T, uid int, cmd *exec.Cmd) *daemon {
	t.Helper()
	d := &daemon{uid: uid, log: new(testkit.Buffer)}
	home := folder(t, uid)
	d.env = []string{"HOME=" + home, "XDG_STATE_HOME=" + home, "XDG_RUNTIME_DIR=" + home}
	cmd.Env = append(os.Environ(), d.env...)
	cmd.Stderr = d.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = cmd.Wait()
		}()
		select {
		case <-ended:
		case <-time.After(testkit.Patience):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the server does not say where it listens: %v; %s", err, d.log)
	}
	d.url = strings.TrimSpace(line)
	var isURL bool
	if _, d.address, isURL = strings.Cut(d.url, "://"); !isURL { // exec-server forward
		d.address, _, _ = strings.Cut(d.url, " ")
	}
	return d
}

// folder makes a directory that a user owns, not in /tmp, which sandboxes may write.
func folder(t *testing.T, uid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "doors-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, uid, -1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// secret writes a token that only the given user can read.
func secret(t *testing.T, uid int) (file, token string) {
	t.Helper()
	file, token = filepath.Join(folder(t, uid), "token"), "an unguessable token of these tests"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, uid, -1); err != nil {
		t.Fatal(err)
	}
	return file, token
}

// queryToken writes the file of a token of a user, which may come in the query of a URL.
func queryToken(t *testing.T, uid int) (file, token string) {
	t.Helper()
	file, token = secret(t, uid)
	entry := fmt.Sprintf("[[token]]\nname = \"a\"\nsha256 = \"%x\"\nscope = [\"full\"]\nquery = true\n", sha256.Sum256([]byte(token)))
	if err := os.WriteFile(file, []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, token
}

// upgrade returns a request for a WebSocket with further header lines.
func upgrade(host, token string, more ...string) string {
	lines := append([]string{
		"GET / HTTP/1.1", "Host: " + host, "Connection: Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
	}, more...)
	if token != "" {
		lines = append(lines, "Authorization: Bearer "+token)
	}
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// answer reads an answer and returns its status, and its body unless it is an upgrade. The
// status is 0 if the connection ends without an answer.
func answer(conn net.Conn) (status int, body string) {
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	if r.StatusCode == http.StatusSwitchingProtocols {
		return r.StatusCode, ""
	}
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

// knock sends bytes to a server and returns its answer.
func knock(address, text string) (status int, body string) {
	conn, err := net.DialTimeout("tcp", address, testkit.Patience)
	if err != nil {
		return 0, err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := io.WriteString(conn, text); err != nil {
		return 0, err.Error()
	}
	return answer(conn)
}

// attackAs runs an attack as a user.
func attackAs(t *testing.T, uid int, args ...string) string {
	t.Helper()
	text, err := as(uid, exec.Command(programs+"/attacker", append([]string{"attack"}, args...)...)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return strings.TrimSpace(string(text))
}
