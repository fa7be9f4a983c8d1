//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"execserver/internal/machine"
	"execserver/internal/responses"
)

// A network is what two machines know of each other.
type network struct {
	root             string // for directories
	port             string // of sshd on the box
	hostKey, userKey string // private keys
	hostPub, userPub string
}

func newNetwork(root string) (*network, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return nil, err
	}
	if err := listener.Close(); err != nil { // sshd takes the port
		return nil, err
	}
	n := &network{root: root, port: port}
	for name, to := range map[string][2]*string{"host": {&n.hostKey, &n.hostPub}, "user": {&n.userKey, &n.userPub}} {
		path := filepath.Join(root, name)
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ssh-keygen: %w\n%s", err, out)
		}
		for i, file := range []string{path, path + ".pub"} {
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			*to[i] = string(content)
		}
	}
	return n, nil
}

// startBox starts a machine with nothing but an sshd.
func (n *network) startBox(server string) (*exec.Cmd, error) {
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		return nil, err
	}
	box, err := n.start(machine.Machine{
		Name: "box",
		Files: map[string]string{
			"/root/.ssh/authorized_keys": n.userPub,
			"/root/host_key":             n.hostKey,
			"/run/sshd/needed":           "",
		},
		Links: map[string]string{"/opt/bin/exec-server": server},
		Argv: []string{
			sshd, "-D", "-q", "-f", "/dev/null", "-h", "/root/host_key", "-o", "ListenAddress=127.0.0.1:" + n.port,
			"-o", "UsePAM=no", "-o", "PidFile=none", "-o", "PermitRootLogin=yes", "-o", "SetEnv=PATH=/opt/bin:/usr/bin:/bin", "-o", "PasswordAuthentication=no",
		},
	})
	if err != nil {
		return nil, err
	}
	return box, wait(func() error {
		conn, err := net.Dial("tcp", "127.0.0.1:"+n.port)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// startLaptop starts a machine with a terminal, on which exec-server and Codex are installed,
// and with the configuration of ssh that knows the box.
func (n *network) startLaptop(server, codex string, model *responses.Server) (*exec.Cmd, error) {
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		return nil, err
	}
	config := model.CodexConfig() + fmt.Sprintf("\n[projects.%q]\ntrust_level = \"trusted\"\n\n[tui]\nshow_tooltips = false\n", project)
	return n.start(machine.Machine{
		Name: "laptop",
		Files: map[string]string{
			"/root/.codex/config.toml": config,
			"/root/.ssh/id_ed25519":    n.userKey,
			"/root/.ssh/known_hosts":   fmt.Sprintf("[127.0.0.1]:%s %s", n.port, n.hostPub),
			"/root/.ssh/config":        fmt.Sprintf("Host box\n\tHostName 127.0.0.1\n\tPort %s\n\tUser root\n", n.port),
		},
		Links: map[string]string{"/opt/bin/exec-server": server, "/opt/codex": codex},
		Argv:  []string{tmux, "-D", "-S", "/run/tmux", "-f", "/dev/null"},
	})
}

func (n *network) start(m machine.Machine) (*exec.Cmd, error) {
	m.Root = filepath.Join(n.root, m.Name)
	if err := os.Mkdir(m.Root, 0o700); err != nil {
		return nil, err
	}
	m.Dir = project
	m.Env = environment()
	cmd, err := machine.Command(m)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	return cmd, cmd.Start()
}

// environment is that of every program on both machines.
func environment() []string {
	return []string{
		"HOME=/root", "SHELL=/bin/bash", "LANG=C.UTF-8", "TERM=xterm-256color",
		"PATH=/opt/bin:/opt/codex:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
	}
}
