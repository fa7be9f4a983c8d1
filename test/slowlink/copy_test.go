//go:build linux

package main

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/slowlink"
)

// The link of the measurement.
const (
	roundTrip     = 50 * time.Millisecond
	bitsPerSecond = 20_000_000
)

// What copies may take beside the tools that people use today, and beside the content.
const (
	maxTime  = 1.3
	maxBytes = 1.1
)

// TestCopies copies files over a slow link, by cp and by rsync and scp over ssh. It takes
// minutes, so only `make measure-copies` runs it.
func TestCopies(t *testing.T) {
	if os.Getenv("EXEC_SERVER_MEASURE_COPIES") == "" {
		t.Skip("set EXEC_SERVER_MEASURE_COPIES to measure for minutes")
	}
	dir, err := os.MkdirTemp("", "copies") // no longer than paths usually are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{dir: dir, program: build(t, dir)}
	m.serve(t)
	for _, name := range []string{"scp", "rsync"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("install openssh-client and rsync: %v", err)
		}
	}
	sshd := testkit.StartSSHD(t, dir)
	small, smallBytes := smallFiles(t, filepath.Join(dir, "small"), 10_000)
	large := filepath.Join(dir, "large")
	const largeBytes = 200_000_000
	writeRandom(t, large, largeBytes)

	t.Run("10,000 small files", func(t *testing.T) {
		theirs := m.measure(t, "rsync -a", sshd.Address, smallBytes, func(port string) *exec.Cmd {
			return exec.Command("rsync", "-a", "-e", strings.Join(append([]string{"ssh"}, sshd.Flags(port)...), " "), small, "127.0.0.1:"+m.target("rsync"))
		})
		in := m.measure(t, "cp to the machine", m.server, smallBytes, func(port string) *exec.Cmd {
			return m.cp(port, small, ":"+m.target("in"))
		})
		out := m.measure(t, "cp from the machine", m.server, smallBytes, func(port string) *exec.Cmd {
			return m.cp(port, ":"+small, m.target("out"))
		})
		same(t, small, filepath.Join(m.target("in"), "small"))
		same(t, small, filepath.Join(m.target("out"), "small"))
		again := m.measure(t, "cp again", m.server, smallBytes, func(port string) *exec.Cmd {
			return m.cp(port, small, ":"+m.target("in"))
		})
		m.measure(t, "rsync -a again", sshd.Address, smallBytes, func(port string) *exec.Cmd {
			return exec.Command("rsync", "-a", "-e", strings.Join(append([]string{"ssh"}, sshd.Flags(port)...), " "), small, "127.0.0.1:"+m.target("rsync"))
		})
		hold(t, "to the machine", in, theirs)
		hold(t, "from the machine", out, theirs)
		if again.bytes*4 > smallBytes {
			t.Errorf("a second copy sent %d bytes", again.bytes)
		}
	})
	t.Run("200 MB", func(t *testing.T) {
		theirs := m.measure(t, "scp", sshd.Address, largeBytes, func(port string) *exec.Cmd {
			args := append(sshd.Flags(port), "-q", large, "127.0.0.1:"+filepath.Join(m.target("scp"), "large"))
			return exec.Command("scp", args...)
		})
		in := m.measure(t, "cp to the machine", m.server, largeBytes, func(port string) *exec.Cmd {
			return m.cp(port, large, ":"+m.target("in"))
		})
		out := m.measure(t, "cp from the machine", m.server, largeBytes, func(port string) *exec.Cmd {
			return m.cp(port, ":"+large, m.target("out"))
		})
		same(t, large, filepath.Join(m.target("in"), "large"))
		same(t, large, filepath.Join(m.target("out"), "large"))
		hold(t, "to the machine", in, theirs)
		hold(t, "from the machine", out, theirs)
	})
}

// machine is this machine, as the far one.
type machine struct {
	dir     string
	program string // exec-server
	server  string // address of the server
}

// target makes a directory for copies.
func (m *machine) target(name string) string {
	dir := filepath.Join(m.dir, "to", name)
	_ = os.MkdirAll(dir, 0o755) // what copies into it tells
	return dir
}

func build(t *testing.T, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "exec-server")
	if err := testkit.BuildProgram(program); err != nil {
		t.Fatal(err)
	}
	return program
}

func (m *machine) cp(port string, args ...string) *exec.Cmd {
	return exec.Command(m.program, append([]string{"cp", "--url", "ws://127.0.0.1:" + port}, args...)...)
}

// result is one measurement.
type result struct {
	took    time.Duration
	bytes   int64 // on the wire, in both directions
	content int64
}

// measure runs a command through a link of its own to an address.
func (m *machine) measure(t *testing.T, name, address string, content int64, command func(port string) *exec.Cmd) result {
	t.Helper()
	l, err := slowlink.Listen("127.0.0.1:0", address, slowlink.Options{BitsPerSecond: bitsPerSecond, RoundTrip: roundTrip})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr())
	c := command(port)
	begin := time.Now()
	text, err := c.CombinedOutput()
	took := time.Since(begin)
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, text)
	}
	up, down := l.Bytes()
	t.Logf("%-20s %6.1f s, %10d bytes to the machine, %10d from it, %.3f of the content", name, took.Seconds(), up, down, float64(up+down)/float64(content))
	return result{took, up + down, content}
}

// hold compares a copy with that of another tool, and with the content.
func hold(t *testing.T, name string, ours, theirs result) {
	t.Helper()
	if ratio := ours.took.Seconds() / theirs.took.Seconds(); ratio > maxTime {
		t.Errorf("%s: cp takes %.2f of the other's time, more than %.2f", name, ratio, maxTime)
	}
	if ratio := float64(ours.bytes) / float64(ours.content); ratio > maxBytes {
		t.Errorf("%s: cp sends %.2f of the content, more than %.2f", name, ratio, maxBytes)
	}
}

// smallFiles makes files of 2 to 4 KiB in a hundred directories.
func smallFiles(t *testing.T, dir string, n int) (path string, bytes int64) {
	t.Helper()
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprintf("d%02d", i%100))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		size := int64(2048 + i*37%2049)
		writeRandom(t, filepath.Join(sub, fmt.Sprintf("file-%05d.txt", i)), size)
		bytes += size
	}
	return dir, bytes
}

func writeRandom(t *testing.T, path string, size int64) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data) // never fails
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// same checks that a copy is complete, with modes and times.
func same(t *testing.T, source, copy string) {
	t.Helper()
	text, err := exec.Command("rsync", "-anic", "--delete", source+slash(source), copy+slash(source)).CombinedOutput()
	if err != nil {
		t.Fatalf("rsync: %v: %s", err, text)
	}
	if len(text) > 0 {
		t.Errorf("the copy differs: %.500s", text)
	}
}

// slash returns the end with which rsync compares the content of a directory.
func slash(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return "/"
	}
	return ""
}

// serve starts exec-server.
func (m *machine) serve(t *testing.T) {
	t.Helper()
	m.server = strings.TrimPrefix(testkit.Serve(t, m.program, "ws://127.0.0.1:0"), "ws://")
}
