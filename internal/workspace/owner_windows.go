package workspace

import "io/fs"

// strangerOf knows no owners: on Windows only administrators make links.
func strangerOf(fs.FileInfo) (uid uint32, ok bool) { return 0, false }
