package testkit

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// Tests are childless if their children have ended and have been waited for.
func TestChildless(t *testing.T) {
	const name = "EXEC_SERVER_TEST_CHILDLESS"
	mark := strconv.Itoa(os.Getpid())
	child := exec.Command("/bin/sh", "-c", "read line")
	child.Env = []string{name + "=" + mark}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		run  func()
		want int
	}{
		{"nothing", func() {}, 0},
		{"a process", func() { err = child.Start() }, 1},
		{"a zombie", func() {
			_ = stdin.Close()
			WaitFor(t, Patience, func() error {
				if len(Zombies(t)) == 0 {
					return errors.New("no zombie")
				}
				return nil
			})
		}, 1},
		{"a process that was waited for", func() { _ = child.Wait() }, 0},
	} {
		if got := (childless{running(test.run), name, mark, 50 * time.Millisecond}).Run(); got != test.want || err != nil {
			t.Errorf("%s: the tests end with %d, want %d; %v", test.name, got, test.want, err)
		}
	}
}
