package cgroup

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// ProcessesLeft returns how many more processes and threads the control groups of this
// program allow. It returns false if they set no limit.
func ProcessesLeft() (left uint64, limited bool) {
	for _, dir := range pidsGroups() {
		most, err := number(filepath.Join(dir, "pids.max"))
		if err != nil {
			continue // "max", or the root of the hierarchy
		}
		current, err := number(filepath.Join(dir, "pids.current"))
		if err != nil {
			continue
		}
		here := most - min(current, most)
		if !limited || here < left {
			left, limited = here, true
		}
	}
	return left, limited
}

func number(path string) (uint64, error) {
	text, err := sys.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// pidsGroups are the directories of the group in which this program was started and of
// those above it, in the hierarchy that counts processes, of either version.
var pidsGroups = sync.OnceValue(func() (dirs []string) {
	groups, err := sys.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := procfs.Mounts()
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(groups)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		kind := "cgroup2"
		if controllers != "" {
			if kind = "cgroup"; !listed("pids", controllers) {
				continue
			}
		}
		dir, point, ok := directoryOf(group, mounts, func(m procfs.Mount) bool {
			return m.Type == kind && (kind == "cgroup2" || listed("pids", m.Options))
		})
		for ; ok; dir = filepath.Dir(dir) {
			dirs = append(dirs, dir)
			if dir == point || dir == "/" {
				break
			}
		}
	}
	return dirs
})

func listed(name, list string) bool { return strings.Contains(","+list+",", ","+name+",") }
