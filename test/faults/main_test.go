//go:build linux && faults

// Package faults makes every system call behind a point fail or be late, one at
// a time, while a client starts, feeds, signals and ends processes, and checks
// after each that the server kept its contracts: it answered every request, told
// no wrong ending, lost no descriptor, closed none twice, left no process and no
// goroutine, and served the next request.
//
//	make test-faults
package faults

import (
	"os"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/owning"
)

func TestMain(m *testing.M) {
	testkit.Main()
	testkit.SystemMain()
	testkit.InheritNothing()
	testkit.DefaultSignals()
	owning.Main(m)
	os.Exit(m.Run())
}

// TestProcessGroup walks in a program with the ownership of an embedded server.
func TestProcessGroup(t *testing.T) {
	if owning.Means() != "" {
		t.Skip("this program owns by other means")
	}
	walk(t, nil, "")
}

// TestMeans runs TestOwned in one program for each of the other means.
func TestMeans(t *testing.T) { owning.Together(t, "TestOwned") }

func TestOwned(t *testing.T) {
	if owning.Means() == "" {
		t.Skip("TestMeans runs it, in programs of their own")
	}
	o, groups := owning.New(t)
	walk(t, o, groups)
}
