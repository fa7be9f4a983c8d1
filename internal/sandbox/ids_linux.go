package sandbox

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// idMappings maps every id that this program may map to itself: the superuser
// all that it knows, others their own.
func idMappings(file string, own int) []syscall.SysProcIDMap {
	mine := []syscall.SysProcIDMap{{ContainerID: own, HostID: own, Size: 1}}
	if os.Geteuid() != 0 {
		return mine
	}
	known := knownIDs()[file]
	if len(known) == 0 {
		return mine
	}
	return known
}

// knownIDs reads which ids there are in this program's user namespace.
var knownIDs = sync.OnceValue(func() map[string][]syscall.SysProcIDMap {
	known := make(map[string][]syscall.SysProcIDMap)
	for _, file := range []string{"uid_map", "gid_map"} {
		text, err := os.ReadFile("/proc/self/" + file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) != 3 {
				continue
			}
			first, err := strconv.Atoi(fields[0])
			count, err2 := strconv.Atoi(fields[2])
			if err == nil && err2 == nil {
				known[file] = append(known[file], syscall.SysProcIDMap{ContainerID: first, HostID: first, Size: count})
			}
		}
	}
	return known
})

// pidOf is the process id, as this program sees it, of the process that a pidfd
// means; 0 when it is not known.
func pidOf(pidfd int) int {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("Pid:")); ok {
			if pid, err := strconv.Atoi(string(bytes.TrimSpace(value))); err == nil && pid > 0 {
				return pid
			}
		}
	}
	return 0
}
