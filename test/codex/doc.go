// Package codex holds tests that let real, unmodified Codex clients work with exec-server. A
// mock of the model (package responses) tells the client which tools to call, the client has
// its commands run by the server, and the tests check what the model receives in the end.
//
// The tests need installed clients and take minutes, so they are skipped unless
// EXEC_SERVER_TEST_CODEX=1. "make test-codex" installs the clients and runs them:
//
//	scripts/install-codex 0.171.0 0.169.0 0.130.0
//	EXEC_SERVER_TEST_CODEX=1 go test ./test/codex
//
// A test is a [scenario] played with each client of the list in main_test.go. To add one,
// append it to a table such as the one in commands_test.go.
//
// A client that dials a gateway plays the same scenarios as one that dials a server. The
// same server, with the same flags, is then a machine of the gateway: it is the machine
// whose processes a scenario counts, whose files it looks at and whose log it reads. To play
// these alone:
//
//	EXEC_SERVER_TEST_CODEX=1 go test -run '//-gateway$' ./test/codex
//
// The server is built from this module. EXEC_SERVER_COMMAND names another one to compare
// with: a command and its first arguments separated by blanks, to which "--listen URL" is
// added, such as "/usr/local/bin/exec-server". The value "codex" gives each client the
// server of its own release, "codex exec-server". Scenarios that need flags which only ours
// has are skipped then.
//
// Each run has a home, a work folder and a CODEX_HOME of its own under the user's cache
// folder (Codex makes no helper links if its home is below the temporary folder), and talks
// to nothing but loopback addresses.
package codex
