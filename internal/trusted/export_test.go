package trusted

// Read returns the content of a file. It refuses a file that other users can change, a
// secret file that they can read, and a file that belongs to another user except root.
func Read(path string, kind Kind) ([]byte, error) {
	content, _, err := read(path, kind)
	return content, err
}
