package testkit

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

type running func()

func (r running) Run() int { r(); return 0 }

// The ledger finds a descriptor that leaked, and one that other code closed.
func TestLedger(t *testing.T) {
	var left *os.File
	victim, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		run  func()
		want int
	}{
		{"nothing", func() {}, 0},
		{"left", func() { left, _ = os.Open("/") }, 1},
		{"closed by somebody else", func() { _ = unix.Close(victim) }, 1},
		{"closed and given again", func() {
			_ = unix.Close(victim)
			victim, _ = unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}, 1},
	} {
		if victim2, err := unix.FcntlInt(uintptr(victim), unix.F_GETFD, 0); err != nil || victim2 < 0 {
			victim, _ = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		if got := (ledger{running(test.run), nil, 50 * time.Millisecond}).Run(); got != test.want {
			t.Errorf("%s: the tests end with %d, want %d", test.name, got, test.want)
		}
	}
	_ = left.Close()
	_ = unix.Close(victim)
}
