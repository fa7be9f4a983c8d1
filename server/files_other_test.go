//go:build unix && !linux

package server_test

// isolateMounts has nothing to do: no test depends on mounts here.
func isolateMounts() {}
