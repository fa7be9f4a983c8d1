//go:build unix

package testkit_test

import (
	"errors"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// TestSteady stops this program for a while. What failed then is tried again, and what failed
// without a stop is not.
func TestSteady(t *testing.T) {
	stop := func() error {
		pid := strconv.Itoa(syscall.Getpid())
		if err := exec.Command("sh", "-c", "kill -STOP "+pid+"; sleep 2; kill -CONT "+pid).Run(); err != nil {
			t.Fatal(err)
		}
		return errors.New("it was too late")
	}
	tries := 0
	err := testkit.Steady(func() error {
		if tries++; tries == 1 {
			return stop()
		}
		return nil
	})
	if err != nil || tries != 2 {
		t.Errorf("%d tries, %v", tries, err)
	}
	err = testkit.Steady(func() error { return errors.New("it is wrong") })
	if err == nil {
		t.Error("what fails without a stop succeeds")
	}
}
