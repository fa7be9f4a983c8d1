//go:build unix

package server_test

import (
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/server"
)

// noHelperVariable makes the tests those of a program that does not call RunHelper.
const noHelperVariable = "EXEC_SERVER_TEST_NO_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(noHelperVariable) == "" {
		server.RunHelper()
	}
	testkit.Main()
	isolateMounts()
	testkit.DefaultSignals()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} {
		_ = os.Unsetenv(name)
		_ = os.Unsetenv(strings.ToLower(name))
	}
	// The system's certificates are read once, with SSL_CERT_FILE as it is then; a
	// test that sets it must not choose them for all others.
	if _, err := x509.SystemCertPool(); err != nil {
		panic(err)
	}
	// The threads that start children live as long as the program, and so does the
	// socket that asks them to.
	testkit.VerifyMain(testkit.Ledger(m, "socket:", "socket:"))
}
