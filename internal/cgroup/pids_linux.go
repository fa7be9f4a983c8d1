package cgroup

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"execserver/internal/sys"
)

// ProcessesLeft is how many processes and threads more the control groups that
// this program is in allow; false when they do not limit them.
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

// pidsGroups are the directories of the group that this program was started in and
// of those above it, in the hierarchy that counts processes, of either version.
var pidsGroups = sync.OnceValue(func() (dirs []string) {
	groups, err := sys.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := sys.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(groups)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		kind := "cgroup2 "
		if controllers != "" {
			if kind = "cgroup "; !listed("pids", controllers) {
				continue
			}
		}
		for mount := range strings.Lines(string(mounts)) {
			front, back, _ := strings.Cut(strings.TrimSuffix(mount, "\n"), " - ")
			fields, options := strings.Fields(front), strings.Fields(back)
			if len(fields) < 5 || len(options) < 3 || !strings.HasPrefix(back, kind) || kind == "cgroup " && !listed("pids", options[2]) {
				continue
			}
			point := unescape(fields[4])
			below, ok := strings.CutPrefix(group, strings.TrimSuffix(unescape(fields[3]), "/"))
			if !ok || below != "" && below[0] != '/' {
				continue
			}
			for dir := filepath.Join(point, below); ; dir = filepath.Dir(dir) {
				dirs = append(dirs, dir)
				if dir == point || dir == "/" {
					break
				}
			}
			break
		}
	}
	return dirs
})

func listed(name, list string) bool { return strings.Contains(","+list+",", ","+name+",") }
