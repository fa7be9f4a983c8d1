package peer

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// UnixNamespace returns the process namespace of the process that connected to a unix
// socket, whoever holds the connection now.
func UnixNamespace(conn net.Conn) (string, error) {
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return "", ErrUnsupported
	}
	socket, err := raw.SyscallConn()
	if err != nil {
		return "", err
	}
	var credentials *unix.Ucred
	var credentialsErr error
	err = socket.Control(func(fd uintptr) {
		credentials, credentialsErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = credentialsErr
	}
	if err != nil {
		return "", os.NewSyscallError("ask who has connected", err)
	}
	if credentials.Pid == 0 {
		return "", fmt.Errorf("who has connected is not in the process namespace of this program")
	}
	return namespaceOf(int(credentials.Pid))
}

// namespaceOf returns the process namespace of a process. For a process that cannot be
// examined, such as sshd, it relies on what every user can read: whether the process has
// ids in further namespaces.
func namespaceOf(pid int) (string, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	namespace, err := os.Readlink(dir + "/ns/pid")
	if !errors.Is(err, fs.ErrPermission) {
		return namespace, err
	}
	status, statusErr := os.ReadFile(dir + "/status")
	if statusErr != nil {
		return "", statusErr
	}
	for line := range strings.Lines(string(status)) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok && len(strings.Fields(numbers)) == 1 {
			return OwnNamespace(), nil
		}
	}
	return "", err
}
