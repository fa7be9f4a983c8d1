//go:build !linux

package filesystem_test

// isolateMounts does nothing: no test mounts anything on this system.
func isolateMounts() {}
