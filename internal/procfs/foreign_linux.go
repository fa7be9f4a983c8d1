package procfs

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// Foreign returns an error if /proc belongs to another process namespace than this program,
// so that the numbers there are those of other processes than the ones that system calls
// mean. nil means that /proc can be trusted.
var Foreign = sync.OnceValue(func() error {
	status, err := sys.ReadFile("/proc/self/status")
	switch {
	case errors.Is(err, unix.ENOENT):
		return errors.New("/proc does not show this program; mount the /proc of its process namespace")
	case err == nil && !shows(string(status), os.Getpid()):
		return errors.New("/proc belongs to another process namespace; mount the one of this program's, as unshare --mount-proc does")
	}
	return nil // it is there, even if it cannot be read just now
})

// shows reports whether the status of a process shows that the process has the id pid in the
// namespace of /proc and in no namespace below.
func shows(status string, pid int) bool {
	own := strconv.Itoa(pid)
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if (name == "Pid" || name == "NSpid") && strings.TrimSpace(value) != own {
			return false
		}
	}
	return true
}
