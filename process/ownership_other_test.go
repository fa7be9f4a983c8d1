//go:build unix && !linux

package process_test

import (
	"testing"

	"execserver/process"
)

func owning() bool { return false }

func runOwning(*testing.M) {}

func benchOwnership(*testing.B) *process.Ownership { return process.DefaultOwnership() }
