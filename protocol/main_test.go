package protocol_test

import (
	"testing"

	"execserver/internal/testkit"
)

func TestMain(m *testing.M) { testkit.VerifyMain(m) }
