package main

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

	"golang.org/x/sys/unix"

	"execserver/internal/peer"
	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// runningServer is a process that is certainly a server. Its descriptor stays that of this
// process when another one gets the id.
type runningServer struct{ fd int }

// openServer makes sure that a process is an exec-server that serves, or the keeper of one:
// SIGUSR2 would kill most other programs.
func openServer(pid int) (*runningServer, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, errors.New("there is no such process")
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	s := &runningServer{fd}
	// What /proc says belongs to this process if it still runs afterwards.
	err = checkServer(pid)
	if gone := unix.PidfdSendSignal(fd, 0, nil, 0); errors.Is(gone, unix.ESRCH) {
		err = errors.New("there is no such process")
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// checkServer reads in /proc whether a process is a server.
func checkServer(pid int) error {
	if err := procfs.Foreign(); err != nil {
		return fmt.Errorf("find out which program it is: %w", err)
	}
	path := fmt.Sprintf("/proc/%d/exe", pid)
	file, err := os.Readlink(path)
	if err != nil {
		return fmt.Errorf("find out which program it is: %w", sys.WrapError(err))
	}
	own, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program does not know what it was built from, so it recognizes no other one")
	}
	// The file may have another name, and another version may have replaced it.
	if !isBuiltFrom(path, own.Path) {
		return fmt.Errorf("it runs %s, which is no exec-server", file)
	}
	// A process that the server is about to start is a copy of it for a moment, with one thread.
	if stat, err := procfs.ReadStat(pid); err != nil || stat.Threads < 2 {
		return errors.New("it is not a server, or ends just now")
	}
	line := procfs.CommandLine(pid)
	if len(line) == 0 {
		return errors.New("it does not show its command line")
	}
	command, args, err := newCommand().Find(line[1:])
	if err == nil {
		err = command.ParseFlags(args)
	}
	if err != nil || command.HasParent() && command.Name() != "serve" {
		return fmt.Errorf("it is an exec-server, but serves nobody: %s", strings.Join(line, " "))
	}
	return nil
}

// isBuiltFrom reports whether a program was built from a package: the linker adds the name.
// Package debug/buildinfo would make this program larger by 2 %.
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

// waitInterval is how often wait looks whether ctx has ended.
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
		network, address = "tcp", net.JoinHostPort(u.Hostname(), portOf(u))
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
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
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
			return 0, fmt.Errorf("find the server at %s: this program may not look at the process, or that accepts no connection; "+
				"be the server's user or root, or name it with --pid", address)
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
		return 0, fmt.Errorf("ask who listens on the socket: %w", err)
	}
	if credentials.Pid == 0 {
		return 0, errors.New("the process that listens on the socket is in another container; name it there, with --pid")
	}
	return int(credentials.Pid), nil
}
