package connect

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestStart measures, in turns, how long ssh takes to run true, and connect from its start
// to the first output of the server, which is there already. "make measure-connect" runs it
// on a quiet machine.
func TestStart(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("EXEC_SERVER_MEASURE_CONNECT"))
	if err != nil {
		t.Skip("needs a quiet machine: set EXEC_SERVER_MEASURE_CONNECT to a number of rounds, or run make measure-connect")
	}
	b := newBox(t)
	hello(t, b.connect(t, "plain"))
	var plain, connected []time.Duration
	for range rounds {
		ssh := b.sshd.As("plain").Command(b.sshd.Port(), "true")
		began := time.Now()
		must(t, ssh.Run())
		plain = append(plain, time.Since(began))

		connect := b.connect(t, "plain")
		stdin, err := connect.StdinPipe()
		must(t, err)
		stdout, err := connect.StdoutPipe()
		must(t, err)
		began = time.Now()
		must(t, connect.Start())
		_, err = io.WriteString(stdin, `{"id":1,"method":"initialize","params":{"clientName":"measure"}}`+"\n")
		must(t, err)
		line, err := bufio.NewReader(stdout).ReadString('\n')
		connected = append(connected, time.Since(began))
		if err != nil || !strings.Contains(line, "protocolVersion") {
			t.Fatalf("the server answered %q: %v", line, err)
		}
		must(t, stdin.Close())
		testkit.Within(t, "the end of connect", func() { _ = connect.Wait() })
	}
	slices.Sort(plain)
	slices.Sort(connected)
	one, other := plain[rounds/2], connected[rounds/2]
	t.Logf("ssh HOST true: %v; connect to the first output: %v; medians of %d, ratio %.3f",
		one.Round(100*time.Microsecond), other.Round(100*time.Microsecond), rounds, float64(other)/float64(one))
}
