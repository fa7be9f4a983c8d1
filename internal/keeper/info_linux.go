package keeper

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Info is what the keeper, the server and the program that starts them pass on to each
// other.
type Info struct {
	Keeper    int                // its process id
	ProgramID uint64             // see ownership.Options
	Cgroups   string             // the claimed directory, or empty
	Reason    string             // why none was claimed
	Private   string             // see Keep
	LogFormat string             // of the server
	Status    syscall.WaitStatus // of the server, once it has ended
}

// Environment variables that tell this program its role. The value is the number of a
// descriptor: of a file without a name that holds the Info. The environment alone
// therefore gives no role.
const (
	serverVariable = "EXEC_SERVER_KEPT" // a server that has a keeper
	leftVariable   = "EXEC_SERVER_LEFT" // a keeper whose server has left something
)

func (i Info) String() string {
	return strings.Join([]string{
		strconv.Itoa(i.Keeper), strconv.FormatUint(i.ProgramID, 10), strconv.Itoa(int(i.Status)), i.Cgroups, i.Private, i.LogFormat, i.Reason,
	}, "\n")
}

// handOver writes i to a file whose descriptor survives execution. entry is the
// environment variable that announces the file.
func (i Info) handOver(variable string) (entry string, fd int, err error) {
	fd, err = unix.MemfdCreate("keeper", 0)
	if err != nil {
		return "", -1, os.NewSyscallError("memfd_create", err)
	}
	if _, err := unix.Write(fd, []byte(i.String())); err != nil {
		_ = unix.Close(fd)
		return "", -1, os.NewSyscallError("write", err)
	}
	return variable + "=" + strconv.Itoa(fd), fd, nil
}

// maxInfo is more than an Info has. Its longest part, Private, is also bounded by what the
// kernel accepts as one variable.
const maxInfo = 256 << 10

// receive reads the Info that a variable announces. It removes the variable from the
// environment and closes the descriptor, because they are not for children. isKeeper
// reports whether the Info was meant for this process.
func receive(variable string, isKeeper func(pid int) bool) (i Info, ok bool) {
	fd, err := strconv.Atoi(os.Getenv(variable))
	_ = os.Unsetenv(variable) // the name is well-formed
	if err != nil || fd <= 2 {
		return Info{}, false
	}
	b := make([]byte, maxInfo)
	n, err := unix.Pread(fd, b, 0)
	fields := strings.SplitN(string(b[:max(n, 0)]), "\n", 7)
	if err != nil || len(fields) != 7 {
		return Info{}, false
	}
	var errs [3]error
	var status int
	i.Keeper, errs[0] = strconv.Atoi(fields[0])
	i.ProgramID, errs[1] = strconv.ParseUint(fields[1], 10, 64)
	status, errs[2] = strconv.Atoi(fields[2])
	i.Status, i.Cgroups, i.Private = syscall.WaitStatus(status), fields[3], fields[4]
	i.LogFormat, i.Reason = fields[5], fields[6]
	if errs != [3]error{} || !isKeeper(i.Keeper) {
		return Info{}, false
	}
	_ = unix.Close(fd)
	return i, true
}

func isParent(pid int) bool { return pid == os.Getppid() }
func isSelf(pid int) bool   { return pid == os.Getpid() }

// Server returns what a server knows about its keeper. ok is false if it has none, and in
// every later call.
func Server() (info Info, ok bool) { return receive(serverVariable, isParent) }

// Left returns info.Status, the end of the server, to a keeper whose server left
// something running that this program must kill. ok is true only in the first call.
func Left() (info Info, ok bool) { return receive(leftVariable, isSelf) }
