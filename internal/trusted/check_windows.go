package trusted

import "io/fs"

// check accepts every file, because on Windows its mode does not say who may use it.
func check(string, fs.FileInfo, Kind) error { return nil }
