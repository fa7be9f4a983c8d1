package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
)

// mapIDs maps ids into the user namespace of a process: all ids that this program knows
// if it may do so, otherwise its own.
func mapIDs(pid int) error {
	if err := procfs.CheckNamespace(); err != nil {
		return err
	}
	maps := knownIDs()
	if os.Geteuid() != 0 || !hasCapability(unix.CAP_SETUID) || !hasCapability(unix.CAP_SETGID) || maps == nil {
		maps = &idMaps{uid: ownID(os.Geteuid()), gid: ownID(os.Getegid()), setgroups: "deny"}
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/"
	for _, file := range []struct{ name, text string }{
		{"setgroups", maps.setgroups}, {"uid_map", maps.uid}, {"gid_map", maps.gid},
	} {
		if file.text == "" {
			continue
		}
		if err := os.WriteFile(dir+file.name, []byte(file.text), 0); err != nil {
			return err
		}
	}
	return nil
}

// idMaps is the content of the files that map the ids of a user namespace. An empty text
// leaves the file alone.
type idMaps struct{ uid, gid, setgroups string }

func ownID(id int) string { return fmt.Sprintf("%d %[1]d 1\n", id) }

// knownIDs maps the ids of this program's user namespace to themselves. It returns nil if
// they are unknown.
var knownIDs = sync.OnceValue(func() *idMaps {
	maps := &idMaps{}
	for file, text := range map[string]*string{"uid_map": &maps.uid, "gid_map": &maps.gid} {
		known, err := os.ReadFile("/proc/self/" + file)
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(known)) {
			fields := strings.Fields(line)
			if len(fields) != 3 {
				return nil
			}
			*text += fields[0] + " " + fields[0] + " " + fields[2] + "\n"
		}
	}
	return maps
})

// pidOf returns the process id, in this program's namespace, of a pidfd, or 0 if unknown.
func pidOf(pidfd int) int {
	if procfs.CheckNamespace() != nil {
		return 0
	}
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

// capabilities returns the capabilities of this thread, and the header for Capset.
func capabilities() (header unix.CapUserHeader, data [2]unix.CapUserData, err error) {
	header.Version = unix.LINUX_CAPABILITY_VERSION_3
	err = unix.Capget(&header, &data[0])
	return header, data, err
}

// hasCapability reports whether this program has a capability.
func hasCapability(capability int) bool {
	_, data, err := capabilities()
	return err == nil && data[capability/32].Effective&(1<<(capability%32)) != 0
}

// outOfReach returns the paths that are accessible only with the capabilities of root, such as
// those in a private directory of another user. A confined command does not have these
// capabilities, and neither has bubblewrap, which could not hide the paths.
func outOfReach(paths []string) map[string]bool {
	if os.Geteuid() != 0 || len(paths) == 0 {
		return nil // the server's own rights are the command's
	}
	found := make(chan map[string]bool)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		header, data, err := capabilities()
		data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		if err == nil {
			err = unix.Capset(&header, &data[0])
		}
		closed := make(map[string]bool)
		for _, path := range paths {
			var info unix.Stat_t
			if err == nil && unix.Lstat(path, &info) == unix.EACCES {
				closed[path] = true
			}
		}
		found <- closed
	}()
	return <-found
}
