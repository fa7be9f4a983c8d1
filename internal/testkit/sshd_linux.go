package testkit

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// SSHD is an sshd on loopback that knows one key. It has its own configuration and host key.
type SSHD struct {
	Address string
	dir     string
	user    string // empty: the user of the test
}

// StartSSHD starts an sshd, whose files are in dir, and ends it with the test. more are
// further lines of its configuration. It skips the test where there is no ssh or sshd does
// not serve.
func StartSSHD(t testing.TB, dir string, more ...string) *SSHD {
	t.Helper()
	Need(t, "sshd", "ssh", "ssh-keygen") // Debian's openssh-server and openssh-client
	sshd, err := exec.LookPath("sshd")   // it insists on an absolute path
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"host", "key"} {
		path := filepath.Join(dir, name)
		if text, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	s := &SSHD{Address: FreeAddress(t), dir: dir}
	_, port, _ := net.SplitHostPort(s.Address)
	config := filepath.Join(dir, "sshd_config")
	text := fmt.Sprintf("ListenAddress 127.0.0.1\nPort %s\nHostKey %s/host\nAuthorizedKeysFile %s/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n"+
		"PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n", port, dir, dir) + strings.Join(more, "\n") + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		_ = os.MkdirAll("/run/sshd", 0o755) // it insists on it; the init script usually makes it
	}
	var said bytes.Buffer
	server := exec.Command(sshd, "-D", "-e", "-f", config)
	server.Stderr = &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := s.Command(port, "true").Run()
		if err == nil {
			return s
		}
		if time.Now().After(deadline) {
			_ = server.Process.Kill()
			_ = server.Wait()
			t.Skipf("sshd does not serve here: %v: %s", err, said.Bytes())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Port returns the port on which sshd listens.
func (s *SSHD) Port() string {
	_, port, _ := net.SplitHostPort(s.Address)
	return port
}

// As returns the same sshd for logging in as another user.
func (s *SSHD) As(user string) *SSHD {
	other := *s
	other.user = user
	return &other
}

// Flags returns the flags with which ssh and scp reach sshd through a port of 127.0.0.1.
func (s *SSHD) Flags(port string) []string {
	flags := []string{
		"-F", "/dev/null", "-i", filepath.Join(s.dir, "key"), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "Port=" + port,
	}
	name := s.user
	if me, err := user.Current(); name == "" && err == nil { // otherwise ssh finds out itself
		name = me.Username
	}
	if name != "" {
		flags = append(flags, "-o", "User="+name)
	}
	return flags
}

// Command returns an ssh that runs words of a shell, through a port of 127.0.0.1.
func (s *SSHD) Command(port string, words ...string) *exec.Cmd {
	return exec.Command("ssh", append(append(s.Flags(port), "127.0.0.1"), words...)...)
}
