package testkit

import (
	"os"
	"strconv"
	"testing"
)

// Number is the value of an environment variable, by which whoever runs a test
// says how much of it; otherwise when it is not set.
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
