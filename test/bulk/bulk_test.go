//go:build linux

// Package bulk passes much data through commands on another machine, beside ssh.
package bulk

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// size is how much each command passes on. The content cannot be compressed.
const size = 1_000_000_000

// TestBulk times `cat` of a file on another machine, and `cat` of a file of this machine
// there and back, by ssh and by `exec-server run` over every transport, in turn. It takes
// minutes and needs a quiet machine, so only `make measure-bulk` runs it.
func TestBulk(t *testing.T) {
	rounds := int(testkit.Number(t, "EXEC_SERVER_MEASURE_BULK", 0))
	if rounds == 0 {
		t.Skip("set EXEC_SERVER_MEASURE_BULK to a number of rounds to measure for minutes")
	}
	dir := testkit.MemoryDir(t)
	b := &bench{dir: dir, program: filepath.Join(dir, "exec-server"), data: filepath.Join(dir, "data")}
	if err := testkit.BuildProgram(b.program); err != nil {
		t.Fatal(err)
	}
	b.sshd = testkit.StartSSHD(t, dir)
	b.configure(t)
	b.writeData(t)
	url, socket := testkit.Serve(t, b.program, "ws://127.0.0.1:0"), testkit.Serve(t, b.program, "unix://"+filepath.Join(dir, "socket"))
	ways := []*way{
		{name: "ssh", command: func(words ...string) *exec.Cmd { return b.sshd.Command(b.sshd.Port(), words...) }},
		{name: "WebSocket", command: b.run("--url", url)},
		{name: "unix socket", command: b.run("--url", socket)},
		{name: "ssh stdio", command: b.run("--on", "box")},
	}
	for range rounds {
		for _, w := range ways {
			w.out.measure(t, w.command("cat", b.data), nil)
			w.inOut.measure(t, w.command("cat"), b.open(t))
		}
	}
	t.Logf("%-12s %26s %40s", "1 GB, median", "out", "in and out")
	for _, w := range ways {
		t.Logf("%-12s %s %s", w.name, w.out.text(&ways[0].out), w.inOut.text(&ways[0].inOut))
	}
}

// bench is what a measurement needs.
type bench struct {
	dir, program, data string
	sshd               *testkit.SSHD
}

// way is one way to run a command on another machine.
type way struct {
	name       string
	command    func(words ...string) *exec.Cmd
	out, inOut times
}

// run returns how `exec-server run` runs a command on the machine that flags name.
func (b *bench) run(flags ...string) func(words ...string) *exec.Cmd {
	return func(words ...string) *exec.Cmd {
		c := exec.Command(b.program, slices.Concat([]string{"run"}, flags, []string{"--"}, words)...)
		c.Env = append(os.Environ(), "CODEX_HOME="+b.dir)
		return c
	}
}

// configure names the machine behind sshd "box".
func (b *bench) configure(t *testing.T) {
	words := append(b.sshd.Flags(b.sshd.Port()), "127.0.0.1", b.program, "--listen", "stdio")
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = strconv.Quote(word)
	}
	text := fmt.Sprintf("[[environments]]\nid = \"box\"\nprogram = \"ssh\"\nargs = [%s]\n", strings.Join(quoted, ", "))
	if err := os.WriteFile(filepath.Join(b.dir, "environments.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeData writes the file that the commands pass on.
func (b *bench) writeData(t *testing.T) {
	f, err := os.Create(b.data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(f, rand.Reader, size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) open(t *testing.T) *os.File {
	f, err := os.Open(b.data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// times are the measurements of one command.
type times struct{ wall, cpu []time.Duration }

// measure runs a command with input, which it closes, and counts what it writes.
func (s *times) measure(t *testing.T, c *exec.Cmd, input *os.File) {
	t.Helper()
	if input != nil {
		defer input.Close()
		c.Stdin = input
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c.Stdout, c.Stderr = null, os.Stderr
	begin, busy := time.Now(), busyTime(t)
	if err := c.Run(); err != nil {
		t.Fatalf("%q: %v", c.Args, err)
	}
	s.wall = append(s.wall, time.Since(begin))
	s.cpu = append(s.cpu, busyTime(t)-busy)
}

// text returns the medians, and those of the wall time beside another's.
func (s *times) text(other *times) string {
	wall, cpu := median(s.wall), median(s.cpu)
	return fmt.Sprintf("%6.2f s, %5.2f of ssh's, %5.1f s of processors", wall.Seconds(),
		wall.Seconds()/median(other.wall).Seconds(), cpu.Seconds())
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// busyTime returns how long the machine's processors have worked, for whomever: what ssh
// and the kernel do belongs to the price, too.
func busyTime(t *testing.T) (busy time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line)[1:9] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatalf("/proc/stat: %v", err)
		}
		if i != 3 && i != 4 { // idle, and idle while it waits for a disk
			busy += time.Duration(ticks) * time.Second / 100
		}
	}
	return busy
}
