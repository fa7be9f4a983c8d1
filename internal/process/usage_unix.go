//go:build unix && !linux

package process

import "runtime"

// maxRSS converts a child's peak memory from the unit of the system to bytes.
func maxRSS(n int64) int64 {
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return n
	}
	return n << 10
}
