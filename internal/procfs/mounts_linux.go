package procfs

import (
	"fmt"
	"strconv"
	"strings"

	"execserver/internal/sys"
)

// Mount is one line of /proc/self/mountinfo.
type Mount struct {
	ID      uint64 // as in statx
	Device  string // of the file system, as the kernel numbers it
	Root    string // the directory of the file system that is mounted
	Point   string // where it is mounted
	Type    string // of the file system
	Options string // of the file system, separated by commas
}

// Mounts lists what is mounted in this program's mount namespace.
func Mounts() ([]Mount, error) {
	text, err := sys.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []Mount
	for line := range strings.Lines(string(text)) {
		front, back, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		fields, system := strings.Fields(front), strings.Fields(back)
		if len(fields) < 5 || len(system) < 1 {
			continue
		}
		m := Mount{Device: fields[2], Root: unescape(fields[3]), Point: unescape(fields[4]), Type: system[0]}
		if m.ID, err = strconv.ParseUint(fields[0], 10, 64); err != nil {
			return nil, fmt.Errorf("understand /proc/self/mountinfo: %w", err)
		}
		if len(system) > 2 {
			m.Options = system[2]
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	for _, c := range []string{" ", "\t", "\n", `\`} {
		s = strings.ReplaceAll(s, fmt.Sprintf(`\%03o`, c[0]), c)
	}
	return s
}
