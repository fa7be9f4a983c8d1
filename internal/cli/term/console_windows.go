package term

import "golang.org/x/sys/windows"

// foreground returns true, because this system has no jobs that share a terminal.
func foreground(int) bool { return true }

// flushInput discards the unread input of a console.
func flushInput(fd int) { _ = windows.FlushConsoleInputBuffer(windows.Handle(fd)) }
