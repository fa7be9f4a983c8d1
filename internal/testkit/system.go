package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const systemVariable = "EXEC_SERVER_TEST_SYSTEM"

// Root is what System calls the need for the superuser, who mounts, makes control groups and
// becomes other users.
const Root = "root"

// System skips t unless EXEC_SERVER_TEST_SYSTEM=1, as make test-system sets it, or if it lacks
// one of its needs. A test calls it that needs more than Go and the rights of an ordinary user.
func System(t testing.TB, needs ...string) {
	t.Helper()
	if os.Getenv(systemVariable) != "1" {
		t.Skip(systemReason(needs))
	}
	Need(t, needs...)
}

// Need skips t if it lacks a need: a program, or Root. With CI=true it fails t, so that CI
// cannot be green without it.
func Need(t testing.TB, needs ...string) {
	t.Helper()
	for _, need := range needs {
		if err := missing(need); err != nil && inCI() {
			t.Fatal(err)
		} else if err != nil {
			t.Skip(err)
		}
	}
}

// NeedFile skips t if there is no file that a command makes. With CI=true it fails t.
func NeedFile(t testing.TB, path, command string) {
	t.Helper()
	switch _, err := os.Stat(path); {
	case err != nil && inCI():
		t.Fatalf("run %s: %v", command, err)
	case err != nil:
		t.Skipf("run %s: %v", command, err)
	}
}

// SystemMain is System for all tests of a program. TestMain calls it before it prepares
// anything for them.
func SystemMain(needs ...string) {
	if os.Getenv(systemVariable) != "1" {
		fmt.Println("no tests:", systemReason(needs))
		os.Exit(0)
	}
	for _, need := range needs {
		if err := missing(need); err != nil && inCI() {
			fmt.Println(err)
			os.Exit(1)
		} else if err != nil {
			fmt.Println("no tests:", err)
			os.Exit(0)
		}
	}
}

func systemReason(needs []string) string {
	if len(needs) == 0 {
		needs = []string{"more than Go and the rights of an ordinary user"}
	}
	return fmt.Sprintf("needs %s: set %s=1, or run make test-system", strings.Join(needs, ", "), systemVariable)
}

func inCI() bool { return os.Getenv("CI") == "true" }

func missing(need string) error {
	if need == Root {
		if os.Geteuid() != 0 {
			return errors.New("only root can run it")
		}
		return nil
	}
	if _, err := exec.LookPath(need); err != nil {
		return fmt.Errorf("install %s: %w", need, err)
	}
	return nil
}
