package auth_test

import (
	"os"
	"testing"

	"execserver/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Ledger(m).Run()) }
