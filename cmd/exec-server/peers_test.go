//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// TestSystemPeers lets users connect to a unix socket that all of them can reach.
func TestSystemPeers(t *testing.T) {
	testkit.System(t, testkit.Root)
	dir := testkit.SocketDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	client := filepath.Join(dir, "exec-server")
	testkit.CopyProgram(t, client)
	socket := filepath.Join(dir, "s")
	credential := func(uid uint32, groups ...uint32) *syscall.Credential {
		return &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}
	}
	const refused = "may not connect to this server; its operator can allow that"
	for _, row := range []struct {
		name  string
		flags []string
		as    *syscall.Credential
		open  bool // somebody widens the mode of the socket
		want  string
	}{
		{"root", nil, credential(0), false, ""},
		{"another", nil, credential(61234), false, "permission denied"},
		{"another, who gets to the socket all the same", nil, credential(61234), true, "the user 61234 " + refused},
		{"an allowed user", []string{"--allow-uid=61234"}, credential(61234), false, ""},
		{"one of two allowed users", []string{"--allow-uid=61233", "--allow-uid=61234"}, credential(61234), false, ""},
		{"root beside allowed users", []string{"--allow-uid=61234"}, credential(0), false, ""},
		{"beside allowed users", []string{"--allow-uid=61234"}, credential(61235), false, "the user 61235 " + refused},
		{"number of an allowed group", []string{"--allow-gid=61235"}, credential(61234), false, "the user 61234 " + refused},
		{"the primary group", []string{"--allow-gid=61234"}, credential(61234), false, ""},
		{"another group", []string{"--allow-gid=61300"}, credential(61234, 61301, 61300), false, ""},
		{"in no such group", []string{"--allow-gid=61300"}, credential(61234, 61301), false, "the user 61234 " + refused},
		{"a group does not make a user", []string{"--allow-uid=61300"}, credential(61234, 61300), false, "the user 61234 " + refused},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := newServer(t, append([]string{"--listen=unix://" + socket}, row.flags...)...)
			if row.open {
				if err := os.Chmod(socket, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			command := exec.Command(client, "run", "--url=unix://"+socket, "--", "true")
			command.Env, command.Dir = []string{"HOME=/", "PATH=/usr/bin:/bin"}, "/"
			command.SysProcAttr = &syscall.SysProcAttr{Credential: row.as}
			text, err := command.CombinedOutput()
			switch {
			case row.want == "" && err != nil:
				t.Errorf("refused: %v: %s", err, text)
			case row.want != "" && err == nil:
				t.Errorf("let in: %s", text)
			case row.want != "":
				testkit.WaitFor(t, testkit.Patience, func() error { // what the server logs may come later
					if got := string(text) + p.stderr.text(); !strings.Contains(got, row.want) {
						return fmt.Errorf("got %s; want %q", got, row.want)
					}
					return nil
				})
			}
			if err := p.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.exits(t, 0)
		})
	}
}
