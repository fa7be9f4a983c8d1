package trusted

import "io/fs"

// check allows everything: who may do what with a file is not in its mode here.
func check(string, fs.FileInfo, Kind) error { return nil }
