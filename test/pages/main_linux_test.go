package pages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// A person has an account on this machine and the same account on the box, which is an sshd
// with a host name and home directories of its own.
const (
	uid  = 61800
	home = "/home/me"
	// place has the programs, and the shells' commands. A file system in memory hides what
	// is there otherwise.
	place = "/mnt"
	bin   = place + "/bin"
)

func TestMain(m *testing.M) {
	testkit.SystemMain(testkit.Root, "sshd", "ssh", "openssl", "setpriv", "unshare")
	testkit.IsolateMounts(unix.CLONE_NEWNET, unix.CLONE_NEWPID) // nothing survives the test
	testkit.DefaultSignals()
	code := 1
	if err := prepare(); err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// prepare builds the programs, and gives this machine the names and addresses that the
// pages use.
func prepare() error {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc of this process namespace: %w", err)
	}
	if err := unix.Mount("tmpfs", place, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a file system in memory: %w", err)
	}
	if err := unix.Mount("tmpfs", "/srv", "tmpfs", 0, "mode=777"); err != nil {
		return fmt.Errorf("mount a file system in memory: %w", err)
	}
	for _, dir := range []string{"/srv/project", bin, place + "/typed", place + "/keys"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin+"/exec-server", "execserver/cmd/exec-server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w: %s", err, out)
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	account := fmt.Sprintf("me:*:%d:%d::%s:/bin/sh\n", uid, uid, home)
	for path, text := range map[string]string{
		"/etc/passwd": string(passwd) + account,
		"/etc/hosts":  "127.0.0.1 localhost\n::1 localhost\n127.0.0.1 box box.example box.example.com\n",
	} {
		instead := filepath.Join(place, filepath.Base(path))
		if err := os.WriteFile(instead, []byte(text), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(instead, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	return startBox()
}

// raiseLoopback makes the loopback addresses of this network namespace usable.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// startBox runs an sshd on a machine with the name box: port 22 of loopback. It ends with
// the test.
func startBox() error {
	keys := place + "/keys"
	for _, name := range []string{"host", "key"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(keys, name)).CombinedOutput(); err != nil {
			return fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
	}
	config := "ListenAddress 127.0.0.1\nPort 22\nPort 2222\nHostKey " + keys + "/host\nAuthorizedKeysFile " + keys + "/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n" +
		"PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\nSetEnv PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
	if err := os.WriteFile(keys+"/config", []byte(config), 0o600); err != nil {
		return err
	}
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		return err
	}
	_ = os.MkdirAll("/run/sshd", 0o755) // which the init script usually makes
	server := exec.Command("unshare", "--uts", "--mount", "sh", "-c", `hostname box
mount -t tmpfs -o mode=700 tmpfs /root && mount -t tmpfs -o mode=755 tmpfs /home && mkdir -m 700 "$0" && chown "$1" "$0" || exit
exec "$2" -D -e -f "$3"`, home, fmt.Sprint(uid), sshd, keys+"/config")
	server.Stdout, server.Stderr = os.Stderr, nil
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return server.Start()
}

// standIn takes the place of docker and kubectl: it runs the words from sh on with another
// home directory, as if that were in the container.
const standIn = `#!/bin/sh
while [ "$1" != sh ]; do shift; done
mkdir -p ~/container && HOME=~/container exec "$@"
`

// codexCommand takes the place of a person who starts Codex and types a prompt.
const codexCommand = `#!/bin/sh
exec %q exec --skip-git-repo-check --sandbox danger-full-access "$@" hostname
`

// browser takes the place of a browser that opens a link.
const browser = `#!/bin/sh
case $1 in http://*/*) ;; *) echo "not a link: $1" >&2; exit 1 ;; esac
`

// asMe returns the arguments with which setpriv runs a command as the person.
func asMe(argv ...string) []string {
	return append([]string{fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", uid), "--clear-groups", "--"}, argv...)
}

// newHome makes the home directory of a person who has a project, the program, ssh, and a
// Codex whose model is a script.
func newHome(t *testing.T, codex string, model *responses.Server) {
	t.Helper()
	must(t, unix.Mount("tmpfs", "/home", "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount("/home", unix.MNT_DETACH) })
	t.Cleanup(func() { // what the pages have left running, such as ssh -f
		_ = exec.Command("setpriv", asMe("kill", "-9", "-1")...).Run()
	})
	for path, text := range map[string]string{
		".gitconfig": "[user]\nname = Me\nemail = me@example.com\n",
		".ssh/config": "Host *\nIdentityFile ~/.ssh/key\nIdentitiesOnly yes\nBatchMode yes\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n" +
			"Host box box.example\nHostName 127.0.0.1\n",
		".codex/config.toml": model.CodexConfig(),
		"project/main.go":    "package main\n",
		"project/Makefile":   "test:\n\t@echo tested\n",
	} {
		path = filepath.Join(home, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	key, err := os.ReadFile(place + "/keys/key")
	must(t, err)
	must(t, os.WriteFile(home+"/.ssh/key", key, 0o600))
	must(t, filepath.WalkDir(home, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, uid, uid)
	}))
	testkit.WaitFor(t, testkit.Patience, func() error { // sshd may not listen yet
		out, err := exec.Command("setpriv", asMe("env", "HOME="+home, "ssh", "box", "find . -mindepth 1 -delete")...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("empty the home directory on the box: %w: %s", err, out)
		}
		return nil
	})
	scripts := map[string]string{"docker": standIn, "kubectl": standIn, "xdg-open": browser}
	if codex != "" {
		program, err := filepath.EvalSymlinks(codex)
		must(t, err)
		codex = filepath.Join(bin, "codex-released") // the person cannot look into root's home directory
		must(t, os.WriteFile(codex, nil, 0o755))
		must(t, unix.Mount(program, codex, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(codex, unix.MNT_DETACH) })
		scripts["codex"] = fmt.Sprintf(codexCommand, codex)
	}
	for name, text := range scripts {
		must(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755))
	}
}

// login returns a shell of the person, here or on the box.
func login(t *testing.T, where string) *shell {
	t.Helper()
	dir, err := os.MkdirTemp(place+"/typed", "")
	must(t, err)
	must(t, os.Chown(dir, uid, uid))
	words := []string{"sh"}
	if where == "box" {
		words = []string{"ssh", "-T", "box", "cd; exec sh"}
	}
	cmd := exec.Command("setpriv", asMe(words...)...)
	cmd.Env = []string{"HOME=" + home, "USER=me", "LOGNAME=me", "SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=xterm", "PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
	cmd.Dir = home + "/project"
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return newShell(t, cmd, dir)
}
