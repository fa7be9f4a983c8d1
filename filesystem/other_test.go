//go:build !linux

package filesystem_test

// isolateMounts has nothing to do: no test mounts anything here.
func isolateMounts() {}
