//go:build !linux

package filesystem

import "os"

// InProc reports whether an open file is in /proc; here none tells of this
// program.
func InProc(*os.File) bool { return false }
