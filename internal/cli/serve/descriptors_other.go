//go:build !linux

package serve

import "os"

func InheritNothing() error { return nil }

func IgnoreBrokenPipes() {}

func interruptible(stdin *os.File) *os.File { return stdin }
