package keeper

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Info is what keeper, server and the program that starts them tell each other.
type Info struct {
	Keeper  int                // its process id
	Series  uint64             // see process.OwnershipOptions
	Cgroups string             // the directory that was claimed, or empty
	Reason  string             // why none was
	Status  syscall.WaitStatus // of the server, once it has ended
}

// The environment variables that tell this program what it is.
const (
	keeperVariable = "EXEC_SERVER_KEEPER" // a keeper
	serverVariable = "EXEC_SERVER_KEPT"   // a server that has a keeper
	leftVariable   = "EXEC_SERVER_LEFT"   // a keeper whose server has left something
)

func (i Info) String() string {
	return strings.Join([]string{
		strconv.Itoa(i.Keeper), strconv.FormatUint(i.Series, 10), strconv.Itoa(int(i.Status)), i.Cgroups, i.Reason,
	}, "\n")
}

// take reads a variable and removes it from the environment, since it is not
// for children. It was not meant for this program if keeper says so.
func take(variable string, isKeeper func(pid int) bool) (i Info, ok bool) {
	fields := strings.SplitN(os.Getenv(variable), "\n", 5)
	_ = os.Unsetenv(variable) // the name is well-formed
	if len(fields) != 5 {
		return Info{}, false
	}
	var errs [3]error
	var status int
	i.Keeper, errs[0] = strconv.Atoi(fields[0])
	i.Series, errs[1] = strconv.ParseUint(fields[1], 10, 64)
	status, errs[2] = strconv.Atoi(fields[2])
	i.Status, i.Cgroups, i.Reason = syscall.WaitStatus(status), fields[3], fields[4]
	if errs != [3]error{} || !isKeeper(i.Keeper) {
		return Info{}, false
	}
	return i, true
}

func isParent(pid int) bool { return pid == os.Getppid() }
func isSelf(pid int) bool   { return pid == os.Getpid() }

// Server tells a server about its keeper; ok is false if it has none. The answer
// is given once.
func Server() (info Info, ok bool) { return take(serverVariable, isParent) }

// Left tells a keeper that its server has ended with info.Status and left
// something running, which is this program's to kill. The answer is given once.
func Left() (info Info, ok bool) { return take(leftVariable, isSelf) }
