//go:build unix && !linux

package process

import "runtime"

// maxRSS makes bytes of what the system tells.
func maxRSS(n int64) int64 {
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return n
	}
	return n << 10
}
