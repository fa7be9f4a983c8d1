package testkit

import (
	"os"
	"strconv"
	"testing"
)

// Number returns the number in an environment variable, or otherwise if the variable is
// not set. With such a variable the person who runs a test chooses its size.
func Number(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
