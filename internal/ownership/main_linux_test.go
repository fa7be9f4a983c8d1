package ownership_test

import (
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/owning"
)

func TestMain(m *testing.M) {
	testkit.Main()
	testkit.InheritNothing()
	testkit.DefaultSignals()
	// The threads that start children live as long as the program, and so does the
	// socket that asks them to. ReapOrphans has the list of its children open, and
	// may have opened it before the tests or after they began.
	tests := testkit.Ledger(m, "socket:", "socket:", "/proc/")
	owning.Main(tests)
	testkit.VerifyMain(tests)
}
