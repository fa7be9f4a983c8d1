//go:build !faults

package fault

// Enabled reports whether the program was built with the tag faults.
const Enabled = false

// At returns the error that a test injects at a point.
func At(string) error { return nil }

// Own notes that a descriptor was opened.
func Own(int) {}

// Disown notes that a descriptor passes to somebody else, usually an os.File.
func Disown(int) {}

// Close notes that a descriptor is about to be closed.
func Close(int) {}
