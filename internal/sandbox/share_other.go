//go:build !linux

package sandbox

// share has nothing to tell where nothing is confined.
type share struct{}

func (*share) set(bool) {}

func (*share) others() bool { return false }
