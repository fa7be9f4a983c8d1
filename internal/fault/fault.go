//go:build !faults

package fault

// At returns the error that a test injects at a point.
func At(string) error { return nil }

// Own notes that a descriptor was opened.
func Own(int) {}

// Disown notes that another owner, usually an os.File, takes over a descriptor.
func Disown(int) {}

// Close notes that a descriptor is about to be closed.
func Close(int) {}
