//go:build !linux

package serve

// startedAs returns no process: only Linux has systemd.
func startedAs() int { return -1 }

func isListening(int) bool { return false }

func (supervisor) reloading() {}
