//go:build unix && !linux

package testkit

// InheritNothing does nothing here.
func InheritNothing() {}
