//go:build !linux

package sys

// EnlargePipe does nothing: only Linux can.
func EnlargePipe(any) {}

// ReserveSpace reserves nothing: only Linux can do so without changing the file's size.
func ReserveSpace(int, int64) error { return nil }
