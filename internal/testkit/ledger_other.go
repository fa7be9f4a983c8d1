//go:build !unix

package testkit

// Tests is what TestMain gets.
type Tests interface{ Run() int }

// Ledger returns the tests as they are: open descriptors cannot be listed here.
func Ledger(m Tests, _ ...string) Tests { return m }
