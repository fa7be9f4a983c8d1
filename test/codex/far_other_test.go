//go:build unix && !linux

package codex

// farPossible reports whether a server can have a work folder of its own.
func farPossible() bool { return false }
