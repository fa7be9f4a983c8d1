//go:build unix && !linux

package testkit

// InheritNothing does nothing on this system.
func InheritNothing() {}
