//go:build !linux

package sandbox

// share is empty: nothing is confined on this system.
type share struct{}

func (*share) set(bool) {}

func (*share) others() bool { return false }
