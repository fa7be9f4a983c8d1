//go:build !linux

package filesystem

// MaxWatchers returns how many watchers the clients of a server may have together; this
// system does not say.
func MaxWatchers() int { return 1024 }
