//go:build !linux

package sys

// EnlargePipe does nothing: only Linux can.
func EnlargePipe(any) {}

// ReserveRoom reserves nothing: only Linux can without changing the size of the file.
func ReserveRoom(int, int64) error { return nil }
