package connect

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestStart measures, in turns, how long ssh takes to run true, and to the first output of a
// server that was installed there, and of one that connect finds there. "make
// measure-connect" runs it on a quiet machine.
func TestStart(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("EXEC_SERVER_MEASURE_CONNECT"))
	if err != nil {
		t.Skip("needs a quiet machine: set EXEC_SERVER_MEASURE_CONNECT to a number of rounds, or run make measure-connect")
	}
	b := newBox(t)
	hello(t, b.connect(t, "plain"))
	installed := programs(b.cache("plain"))[0]
	ways := []struct {
		name  string
		start func() *exec.Cmd
		times []time.Duration
	}{
		{name: "ssh HOST true", start: func() *exec.Cmd { return b.sshd.As("plain").Command(b.sshd.Port(), "true") }},
		{name: "ssh HOST exec-server", start: func() *exec.Cmd {
			return b.sshd.As("plain").Command(b.sshd.Port(), installed, "serve", "--listen", "stdio")
		}},
		{name: "connect ssh HOST", start: func() *exec.Cmd { return b.connect(t, "plain") }},
	}
	for range rounds {
		for i := range ways {
			ways[i].times = append(ways[i].times, firstOutput(t, ways[i].start(), i > 0))
		}
	}
	for _, way := range ways {
		slices.Sort(way.times)
		at := func(part int) time.Duration { return way.times[(rounds-1)*part/100].Round(100 * time.Microsecond) }
		t.Logf("%-22s median %v, of 100 the 90th %v, the last %v, ratio %.3f",
			way.name, at(50), at(90), at(100), float64(at(50))/float64(ways[0].times[(rounds-1)/2]))
	}
}

// firstOutput returns how long a command takes, or until the server that it leads to has
// answered.
func firstOutput(t *testing.T, command *exec.Cmd, serves bool) (took time.Duration) {
	t.Helper()
	stdin, err := command.StdinPipe()
	must(t, err)
	stdout, err := command.StdoutPipe()
	must(t, err)
	began := time.Now()
	must(t, command.Start())
	if serves {
		_, err = io.WriteString(stdin, `{"id":1,"method":"initialize","params":{"clientName":"measure"}}`+"\n")
		must(t, err)
		line, err := bufio.NewReader(stdout).ReadString('\n')
		took = time.Since(began)
		if err != nil || !strings.Contains(line, "protocolVersion") {
			t.Fatalf("the server answered %q: %v", line, err)
		}
	}
	must(t, stdin.Close())
	testkit.Within(t, "the end of the command", func() { _ = command.Wait() })
	if !serves {
		took = time.Since(began)
	}
	return took
}
