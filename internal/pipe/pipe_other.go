//go:build !linux

// Package pipe prepares pipes for bulk data.
package pipe

// Enlarge does nothing: only Linux can.
func Enlarge(any) {}
