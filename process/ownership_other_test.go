//go:build unix && !linux

package process_test

import (
	"testing"

	"execserver/internal/testkit"
	"execserver/process"
)

func runOwning(testkit.Tests) {}

func benchOwnership(*testing.B) *process.Ownership { return process.DefaultOwnership() }
