package terminal

import "golang.org/x/sys/windows"

// flushInput discards the input of a console that nobody has read.
// foreground reports that this program has the terminal: this system has no jobs that share
// one.
func foreground(int) bool { return true }

func flushInput(fd int) { _ = windows.FlushConsoleInputBuffer(windows.Handle(fd)) }
