package main

import "golang.org/x/sys/windows"

// flushInput discards the input of a console that nobody has read.
func flushInput(fd int) { _ = windows.FlushConsoleInputBuffer(windows.Handle(fd)) }
