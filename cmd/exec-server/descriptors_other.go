//go:build !linux

package main

import "os"

func inheritNothing() error { return nil }

func ignoreBrokenPipes() {}

func interruptible(stdin *os.File) *os.File { return stdin }
