package process_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestStreamsBlock: a program expects streams that block, whatever this program needs at
// the other ends.
func TestStreamsBlock(t *testing.T) {
	for _, input := range []bool{false, true} {
		spec := shell("exec sleep 1000")
		spec.PipeStdin = input
		p := start(t, spec, nil)
		for fd := range 3 {
			var text []byte
			testkit.WaitFor(t, testkit.Patience, func() (err error) {
				text, err = os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", p.Describe().Pid, fd))
				return err
			})
			_, rest, _ := strings.Cut(string(text), "flags:")
			flags, err := strconv.ParseInt(strings.Fields(rest)[0], 8, 64)
			if err != nil || flags&unix.O_NONBLOCK != 0 {
				t.Errorf("stdin a pipe: %v: flags of descriptor %d: %#o %v", input, fd, flags, err)
			}
		}
		p.Kill()
		<-p.Closed()
	}
}
