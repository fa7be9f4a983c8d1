package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowWorkingDirectory asks a file system that takes a second to answer, and then hangs.
// A client must not be told that the directory is gone.
func TestSlowWorkingDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := time.Second
		c := cwd{getwd: func() (string, error) {
			time.Sleep(takes)
			return "/work", nil
		}}
		if dir := c.get(); dir != "/work" {
			t.Errorf("the first answer is %q", dir)
		}
		takes = time.Hour
		began := time.Now()
		if dir := c.get(); dir != "/work" || time.Since(began) != cwdTimeout {
			t.Errorf("%q after %v", dir, time.Since(began))
		}
		synctest.Wait()
		time.Sleep(takes)
	})
}

// TestHangingWorkingDirectory asks a file system that never answers. Only the first clients wait.
func TestHangingWorkingDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cwd{getwd: func() (string, error) {
			time.Sleep(time.Hour)
			return "", nil
		}}
		began := time.Now()
		for range 3 {
			if dir := c.get(); dir != "" || time.Since(began) != firstCwdTimeout {
				t.Errorf("%q after %v", dir, time.Since(began))
			}
		}
		time.Sleep(time.Hour)
	})
}
