//go:build !unix

package recording

import "os"

// lockDirectory does nothing: this system cannot lock directories.
func lockDirectory(*os.File) error { return nil }
