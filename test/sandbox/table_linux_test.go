package sandbox_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestAttacks tries every attack on a pipe and on a terminal, and looks at the
// machine afterwards.
func TestAttacks(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		m.must(err)
		defer tcp.Close()
		path := filepath.Join(m.base, "socket")
		daemon, err := net.Listen("unix", path)
		m.must(err)
		defer daemon.Close()
		m.must(os.Chmod(path, 0o777))
		datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(m.base, "datagrams")})
		m.must(err)
		defer datagrams.Close()
		m.must(os.Chmod(filepath.Join(m.base, "datagrams"), 0o777))
		abstract, err := net.Listen("unix", "@"+filepath.Base(m.base))
		m.must(err)
		defer abstract.Close()
		port := tcp.Addr().(*net.TCPAddr).Port

		before := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git"))
		for _, network := range []string{"restricted", "enabled"} {
			sandbox := m.workspaceWrite()
			sandbox["permissions"].(object)["network"] = network
			for _, tty := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/tty=%v", network, tty), func(t *testing.T) {
					m.attack(t, network, m.program, sandbox, tty, port)
				})
			}
		}
		if after := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git")); after != before {
			t.Errorf("the attacks have left\n%s\nof\n%s", after, before)
		}
		m.clean(m.ws)
	})
}

// attack runs a list of attacks in a sandbox. port is of a listener on the
// machine's loopback.
func (m *machine) attack(t *testing.T, list, program string, sandbox any, tty bool, port int) {
	t.Helper()
	p := m.run(command{tty: tty, sandbox: sandbox, argv: []string{
		program, "attack", list, m.base, strconv.Itoa(m.pid), strconv.Itoa(port),
	}})
	judge(t, attacks[list], m.written(p))
	if p.sandboxType != "linuxSeccomp" || p.exit.ExitCode != 0 || p.exit.SandboxDenied {
		t.Errorf("sandboxType %q, exit %+v", p.sandboxType, p.exit)
	}
}

// judge compares what the attacker says with what must be.
func judge(t *testing.T, list []attempt, output string) {
	t.Helper()
	results := make(map[string]string)
	for _, line := range strings.Split(output, "\n") {
		if name, result, ok := strings.Cut(line, "\t"); ok {
			results[name] = result
		}
	}
	for _, attempt := range list {
		result, ok := results[attempt.name]
		if !ok {
			t.Errorf("%s: not tried; the attacker said %q", attempt.name, output)
			return
		}
		if !slices.Contains(strings.Fields(attempt.want), result) {
			t.Errorf("%s: %s, want %s", attempt.name, result, attempt.want)
		}
	}
}

// snapshot describes everything below a directory: kinds, modes, owners, times
// and contents.
func (m *machine) snapshot(dir string) string {
	m.t.Helper()
	var b strings.Builder
	m.must(filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintln(&b, path, info.Mode(), st.Uid, st.Gid, st.Ino, st.Nlink, info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			fmt.Fprintf(&b, "%x %v\n", sha256.Sum256(text), err)
		}
		return nil
	}))
	return b.String()
}

// clean checks that nothing is left of what protected missing names.
func (m *machine) clean(dirs ...string) {
	m.t.Helper()
	for _, dir := range dirs {
		for _, name := range []string{".agents", ".codex", ".aws"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				m.t.Errorf("%s is left in %s", name, dir)
			}
		}
	}
}
