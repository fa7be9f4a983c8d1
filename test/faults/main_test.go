//go:build linux && faults

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
	if owning.Mechanism() != "" {
		t.Skip("this program owns by another mechanism")
	}
	walk(t, nil, "")
}

// TestMechanisms runs TestOwned in one program for each of the other mechanisms.
func TestMechanisms(t *testing.T) { owning.Together(t, "TestOwned") }

func TestOwned(t *testing.T) {
	if owning.Mechanism() == "" {
		t.Skip("TestMechanisms runs it, in programs of their own")
	}
	o, groups := owning.New(t)
	walk(t, o, groups)
}
