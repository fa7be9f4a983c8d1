package filesystem

import (
	"os"
	"strconv"
	"strings"
)

// MaxWatchers returns how many watchers the system allows this user, with those of other
// programs.
func MaxWatchers() int {
	const usual = 128
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return usual
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return usual
	}
	return n
}
