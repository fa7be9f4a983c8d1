//go:build unix

package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// idleExit is how long a server runs that nobody uses. It is as long as a server keeps a stream, so
// that connect finds it again.
const idleExit = 30 * time.Minute

// open connects to the server, which it may start.
func open(ctx context.Context, version string, opts *Options) (*net.UnixConn, error) {
	dir, err := openDirectory(opts, opts.Start)
	if errors.Is(err, os.ErrNotExist) && !opts.Start {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	defer dir.file.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	own := program{self, version}
	if !opts.Start {
		return dir.dial()
	}
	if conn, err := dir.find(own, opts.Upgrade); !errors.Is(err, ErrGone) {
		return conn, err
	}
	lock, err := takeLock(ctx, filepath.Join(dir.path, "lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	// Another relay may have started a server meanwhile.
	if conn, err := dir.find(own, opts.Upgrade); !errors.Is(err, ErrGone) {
		return conn, err
	}
	if opts.Upgrade {
		if err := dir.end(ctx); err != nil {
			return nil, err
		}
	}
	dir.prune()
	if err := dir.start(ctx, own, opts.Flags); err != nil {
		return nil, err
	}
	return dir.dial()
}

// find connects to a server. With upgrade, one of another program counts as gone; otherwise find tells
// the user about it.
func (d *directory) find(own program, upgrade bool) (*net.UnixConn, error) {
	conn, err := d.dial()
	if err != nil {
		return nil, err
	}
	switch running := d.program(); {
	case running == own:
	case upgrade:
		_ = conn.Close()
		return nil, ErrGone
	default:
		text := ""
		if running.version != own.version {
			text = fmt.Sprintf(" (version %s, not %s)", running.version, own.version)
		}
		say("exec-server: the server on this machine was started from another program%s, and serves on; "+
			"connect --upgrade replaces it, which ends what it runs", text)
	}
	return conn, nil
}

// program is a copy of exec-server. Its path has the digest of its content.
type program struct{ path, version string }

// program returns what the server was started from.
func (d *directory) program() program {
	text, _ := os.ReadFile(filepath.Join(d.path, "program")) // without it, the program is unknown
	version, path, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n")
	return program{path, version}
}

// end ends the server.
func (d *directory) end(ctx context.Context) error {
	conn, err := d.dial()
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	pid, err := peerOf(conn)
	if err != nil {
		return fmt.Errorf("find the server that listens at %s: %w", filepath.Join(d.path, "socket"), err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("end the server, process %d: %w", pid, err)
	}
	for {
		other, err := d.dial()
		if errors.Is(err, ErrGone) {
			return nil
		}
		if err == nil {
			_ = other.Close()
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("wait for the end of the server, process %d: %w", pid, err)
		}
	}
}

// start starts a server, and waits until it listens.
func (d *directory) start(ctx context.Context, own program, flags []string) error {
	// The log of an earlier server stays, because it may say why that has ended. A server bounds its log.
	log, err := os.OpenFile(filepath.Join(d.path, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	said, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	if err := inheritNothing(); err != nil {
		_ = theirs.Close()
		return fmt.Errorf("keep the descriptors of the relay from the server: %w", err)
	}
	server := exec.Command(own.path, append(append([]string{"serve"}, flags...), "--run-directory", d.path, "--idle-exit", idleExit.String())...)
	server.Stdout, server.Stderr = theirs, log
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = server.Start()
	_ = theirs.Close()
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }() // ends with the server, or with this program
	defer context.AfterFunc(ctx, func() { _ = said.SetReadDeadline(time.Now()) })()
	if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		return explain(ctx, log, before, server.Process.Pid, ended)
	}
	text := own.version + "\n" + own.path + "\n"
	if err := os.WriteFile(filepath.Join(d.path, "program"), []byte(text), 0o600); err != nil {
		say("exec-server: cannot record the program of the server: %s", err)
	}
	return nil
}

// explain returns why a server does not listen, from what it has written to its log since the given
// offset.
func explain(ctx context.Context, log *os.File, since int64, pid int, ended <-chan error) error {
	select {
	case err := <-ended:
		text := "nothing"
		if err == nil {
			err = errors.New("exit status 0")
		}
		said := make([]byte, maxQuoted)
		n, _ := log.ReadAt(said, since) // it is shorter
		for line := range strings.Lines(string(said[:n])) {
			if text = strings.TrimSpace(line); strings.HasPrefix(strings.ToLower(text), "error:") {
				break // what follows is advice
			}
		}
		return fmt.Errorf("the server ended when it was started: %w; it said: %s", err, text)
	case <-ctx.Done():
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return fmt.Errorf("wait for the server to listen: %w; its log is %s", context.Cause(ctx), log.Name())
	}
}

// maxQuoted bounds what is read of the log.
const maxQuoted = 4 << 10

var errLocked = errors.New("it is locked")

// tryLock opens a file and locks it. The error is errLocked if somebody else holds the lock.
func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, nil
	}
	_ = file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// takeLock waits for a lock, which Close of the file gives up, and the end of the program too.
func takeLock(ctx context.Context, path string) (*os.File, error) {
	for {
		file, err := tryLock(path)
		if err == nil {
			_ = file.Truncate(0)
			_, _ = fmt.Fprintln(file, os.Getpid()) // for the error below
			return file, nil
		}
		if err != errLocked {
			return nil, err
		}
		if err := pause(ctx); err != nil {
			return nil, fmt.Errorf("wait for %s, which %s holds: %w", path, holder(path), err)
		}
	}
}

// holder names the process that holds a lock.
func holder(path string) string {
	text, _ := os.ReadFile(path)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return "another process"
	}
	return fmt.Sprintf("the process %d", pid)
}

// pause waits a moment, or returns why ctx has ended.
func pause(ctx context.Context) error {
	const moment = 20 * time.Millisecond
	select {
	case <-time.After(moment):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
