package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"execserver/internal/cli"
	"execserver/internal/peer"
	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// runningServer is a process that is certainly a server. Its descriptor refers to this process
// even if the id is reused.
type runningServer struct{ fd int }

// openServer verifies that a process is an exec-server that serves, or the supervisor of one.
// SIGUSR2 would kill most other programs.
func openServer(pid int, root *cobra.Command) (*runningServer, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, errors.New("there is no such process")
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	s := &runningServer{fd}
	// If the process still runs, /proc has described it and not a successor.
	err = checkServer(pid, root)
	if gone := unix.PidfdSendSignal(fd, 0, nil, 0); errors.Is(gone, unix.ESRCH) {
		err = errors.New("there is no such process")
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// checkServer decides from /proc whether a process is a server.
func checkServer(pid int, root *cobra.Command) error {
	if err := procfs.CheckNamespace(); err != nil {
		return fmt.Errorf("find out which program it is: %w", err)
	}
	path := fmt.Sprintf("/proc/%d/exe", pid)
	file, err := os.Readlink(path)
	if err != nil {
		return fmt.Errorf("find out which program it is: %w", sys.WrapError(err))
	}
	own, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program does not know what it was built from, so it cannot recognize another one")
	}
	// The file may have another name, and another version may have replaced it.
	if !isBuiltFrom(path, own.Path) {
		return fmt.Errorf("it runs %s, which is not an exec-server", file)
	}
	// A child that the server is just starting looks like it, but has one thread.
	if stat, err := procfs.ReadStat(pid); err != nil || stat.Threads < 2 {
		return errors.New("it is not a server, or is about to end")
	}
	line := procfs.CommandLine(pid)
	if len(line) == 0 {
		return errors.New("its command line is not visible")
	}
	command, args, err := root.Find(line[1:])
	if err == nil {
		err = command.ParseFlags(args)
	}
	if err != nil || command.HasParent() && command.Name() != "serve" {
		return fmt.Errorf("it is an exec-server, but not a server: %s", strings.Join(line, " "))
	}
	return nil
}

// isBuiltFrom reports whether a program was built from a package, whose name the linker adds.
// Package debug/buildinfo would add 2 % to this program.
func isBuiltFrom(path, name string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, 64<<20))
	return err == nil && bytes.Contains(content, []byte("path\t"+name+"\n"))
}

// drain makes the server drain.
func (s *runningServer) drain() error {
	return os.NewSyscallError("send it SIGUSR2", unix.PidfdSendSignal(s.fd, unix.SIGUSR2, nil, 0))
}

// findTimeout bounds how long drain looks for the process that listens.
const findTimeout = 10 * time.Second

// waitInterval is the interval at which waits check their context.
const waitInterval = 100 * time.Millisecond

// wait waits until the server has ended, or returns the error of ctx.
func (s *runningServer) wait(ctx context.Context) error {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, int(waitInterval.Milliseconds()))
		if n > 0 {
			return nil
		}
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("wait for the end of the server", err)
		}
	}
	return ctx.Err()
}

func (s *runningServer) close() { _ = unix.Close(s.fd) }

// serverOf returns the id of the process that listens at a URL on this machine.
func serverOf(ctx context.Context, rawURL string) (int, error) {
	network, address := "unix", strings.TrimPrefix(rawURL, "unix://")
	if address == rawURL {
		u, err := url.Parse(rawURL)
		if err != nil {
			return 0, errors.New("the URL of the server is invalid")
		}
		network, address = "tcp", net.JoinHostPort(u.Hostname(), cli.Port(u))
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return 0, fmt.Errorf("connect to the server: %w", sys.WrapError(err))
	}
	defer conn.Close()
	if conn, ok := conn.(*net.UnixConn); ok {
		return listenerOf(conn)
	}
	local, remote := netip.MustParseAddrPort(conn.LocalAddr().String()), netip.MustParseAddrPort(conn.RemoteAddr().String())
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	for { // until the server has accepted the connection
		socket, err := peer.FindTCP(local, remote)
		if err != nil {
			return 0, fmt.Errorf("find the server at %s on this machine: %w", address, err)
		}
		if pid, ok := new(peer.Holders).PID(socket); ok && !socket.Orphaned() {
			return pid, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("find the server at %s: this program may not inspect the process, or the process accepts no connections; "+
				"run as its user or root, or name it with --pid", address)
		case <-time.After(waitInterval):
		}
	}
}

// listenerOf returns the id of the process that made a unix socket listen.
func listenerOf(conn *net.UnixConn) (pid int, err error) {
	var credentials *unix.Ucred
	err = sys.OnDescriptor(conn, func(fd int) (err error) {
		credentials, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find the process that listens on the socket: %w", err)
	}
	if credentials.Pid == 0 {
		return 0, errors.New("the process that listens on the socket is in another container; name it there, with --pid")
	}
	return int(credentials.Pid), nil
}
