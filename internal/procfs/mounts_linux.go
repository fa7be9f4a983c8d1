package procfs

import (
	"fmt"
	"strings"

	"execserver/internal/sys"
)

// Mount is one line of /proc/self/mountinfo.
type Mount struct {
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
		m := Mount{Root: unescape(fields[3]), Point: unescape(fields[4]), Type: system[0]}
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
