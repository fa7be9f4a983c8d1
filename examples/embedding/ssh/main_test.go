package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"execserver/server"
	"execserver/transport"
)

const socket = "/run/exec-server.sock"

// TestRun runs a command through an SSH server in this process, and breaks the tunnel
// while the command writes.
func TestRun(t *testing.T) {
	user, userText := newKey(t)
	host, _ := newKey(t)
	tunnels := serve(t, host, user.PublicKey())
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("SSH_USER", "somebody")
	t.Setenv("SSH_KEY", file("key", userText))
	t.Setenv("SSH_KNOWN_HOSTS", file("known", knownhosts.Line([]string{tunnels.address}, host.PublicKey())+"\n"))
	broken := filepath.Join(t.TempDir(), "broken")
	out := &breaker{tunnels: tunnels, broken: broken}
	script := "echo before; while [ ! -e " + broken + " ]; do sleep 0.01; done; echo after"
	if err := run(t.Context(), []string{tunnels.address, socket, "sh", "-c", script}, out); err != nil || out.String() != "before\nafter\n" {
		t.Errorf("%q, %v", out, err)
	}
	// A server that has not noticed the end of a tunnel refuses the next one.
	if n := tunnels.count.Load(); n < 2 {
		t.Errorf("%d tunnels, the first of which broke", n)
	}
}

// breaker breaks the tunnel as soon as there is output, and then creates a file.
type breaker struct {
	strings.Builder
	tunnels *tunnels
	broken  string
}

func (b *breaker) Write(text []byte) (int, error) {
	if b.Len() == 0 {
		_ = (*b.tunnels.latest.Load()).Close()
		if err := os.WriteFile(b.broken, nil, 0o600); err != nil {
			return 0, err
		}
	}
	return b.Builder.Write(text)
}

func newKey(t *testing.T) (signer ssh.Signer, text string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer, string(pem.EncodeToMemory(block))
}

// tunnels is an SSH server.
type tunnels struct {
	address string
	server  *server.Server // at the other end of each tunnel
	config  *ssh.ServerConfig
	count   atomic.Int32
	latest  atomic.Pointer[net.Conn]
}

// serve starts an SSH server for a user. Behind its socket is an exec-server.
func serve(t *testing.T, host ssh.Signer, user ssh.PublicKey) *tunnels {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(user.Marshal()) {
			return nil, os.ErrPermission
		}
		return nil, nil
	}}
	config.AddHostKey(host)
	s := &tunnels{address: listener.Addr().String(), server: server.New(nil), config: config}
	t.Cleanup(func() {
		_ = listener.Close()
		_ = s.server.Shutdown(context.Background())
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.count.Add(1)
			s.latest.Store(&conn)
			go s.tunnel(conn)
		}
	}()
	return s
}

// tunnel serves the channels of one connection.
func (s *tunnels) tunnel(conn net.Conn) {
	_, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for channel := range channels {
		var to struct {
			Path, Reserved string
			Number         uint32
		}
		err := ssh.Unmarshal(channel.ExtraData(), &to)
		if err != nil || channel.ChannelType() != "direct-streamlocal@openssh.com" || to.Path != socket {
			_ = channel.Reject(ssh.Prohibited, "there is no such socket")
			continue
		}
		stream, requests, err := channel.Accept()
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		go func() { _ = s.server.ServeConn(transport.NewStream(stream)) }()
	}
}
