//go:build unix

package testkit

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// ServiceManager hears what a program tells systemd.
type ServiceManager struct{ conn *net.UnixConn }

// NewServiceManager listens until the test ends.
func NewServiceManager(t testing.TB) *ServiceManager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(SocketDir(t), "n"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &ServiceManager{conn}
}

// Environment is the variable that tells a program where the service manager listens.
func (s *ServiceManager) Environment() string { return "NOTIFY_SOCKET=" + s.conn.LocalAddr().String() }

// Say makes the test say something in the place of a program.
func (s *ServiceManager) Say(text string) error {
	self, err := net.Dial("unixgram", s.conn.LocalAddr().String())
	if err != nil {
		return err
	}
	defer self.Close()
	_, err = self.Write([]byte(text))
	return err
}

// Hears waits for what is said next, which the whole regular expression must match.
func (s *ServiceManager) Hears(want string) error {
	_ = s.conn.SetReadDeadline(time.Now().Add(Patience)) // it cannot fail
	said := make([]byte, 100)
	n, err := s.conn.Read(said)
	if err != nil || !regexp.MustCompile(`\A`+want+`\z`).Match(said[:n]) {
		return fmt.Errorf("the service manager hears %q, %v; want %q", said[:n], err, want)
	}
	return nil
}
