//go:build linux

package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"execserver/protocol"
)

// Sizes of the work, large enough that starting and stopping hardly count.
const (
	pipeBytes      = 1 << 30
	terminalBytes  = 128 << 20
	seqLast        = 5_000_000
	seqBytes       = 38_888_896
	keys           = 500
	keyPause       = 2 * time.Millisecond
	startsAlone    = 300
	startsConfined = 100
	startsFlying   = 2000
	flying         = 64
	fileBytes      = 8 << 20
	fileTimes      = 20
	metadataMany   = 20_000
	idleMany       = 200
)

// cases are the rows of the first table in docs/performance.md, each with its floor: the time
// of a perfect server.
var cases = []benchCase{
	{"keystroke", func(m *sample, _ *server, c *client) { latencies(m, "keystroke to echo", keys, keyPause, c.typist()) }, keystrokeFloor},
	{"start", func(m *sample, _ *server, c *client) { latencies(m, "start to closed", startsAlone, 0, c.runTrue) }, startFloor},
	{"sandbox", startInSandbox, func(m *sample) {
		latencies(m, "start to closed in a sandbox", startsConfined, 0, func() { m.check(spawn()) })
	}},
	{"starts in flight", startsInFlight, startsFloor},
	outputCase("pipe output", false, pipeBytes, zeros(pipeBytes)...),
	outputCase("terminal output", true, terminalBytes, zeros(terminalBytes)...),
	outputCase("`seq 1 5000000`", false, seqBytes, "/usr/bin/seq", "1", strconv.Itoa(seqLast)),
	{"read file", readFile, readFileFloor},
	{"write file", writeFile, writeFileFloor},
	{"metadata", metadata, nil},
	{"memory", memory, nil},
}

func zeros(n int) []string { return []string{"/usr/bin/head", "-c", strconv.Itoa(n), "/dev/zero"} }

// outputCase measures the output of one command.
func outputCase(name string, tty bool, want int64, argv ...string) benchCase {
	rate := func(m *sample, begin time.Time, got int64) {
		if got != want {
			m.check(fmt.Errorf("%d bytes came of %d", got, want))
		}
		m.add(name, "MB/s", float64(want)/1e6/time.Since(begin).Seconds())
	}
	return benchCase{name, func(m *sample, s *server, c *client) {
		cpu, begin := s.cpu(), time.Now()
		rate(m, begin, c.run(tty, nil, argv...).bytes)
		m.add(name+", processor time per GB", "s", (s.cpu()-cpu).Seconds()/(float64(want)/1e9))
	}, func(m *sample) {
		begin := time.Now()
		rate(m, begin, outputFloor(m, tty, argv...))
	}}
}

// rawCat echoes keys as an editor does.
var rawCat = []string{"/bin/sh", "-c", "stty raw -echo; echo ready; exec cat"}

// typist starts a terminal that echoes, and returns a function that types a key and waits
// for its echo.
func (c *client) typist() (key func()) {
	p := c.sendStart(true, nil, rawCat...)
	n := 0 // chunks that came
	echo := func() {
		c.until(func() bool { return p.chunks > n || p.closed })
		if n = p.chunks; p.closed {
			c.fail(errors.New("the terminal has ended"))
		}
	}
	echo()
	return func() {
		id := strconv.Itoa(c.lastID)
		c.send(encode(protocol.MethodWrite, protocol.WriteParams{ProcessID: p.id, WriteID: &id, Chunk: []byte("x")}))
		echo()
	}
}

// latencies measures n times how long f takes. It pauses as people do, but not as long.
func latencies(m *sample, what string, n int, pause time.Duration, f func()) {
	times := make([]float64, n)
	for i := range times {
		begin := time.Now()
		f()
		times[i] = time.Since(begin).Seconds() * 1e6
		time.Sleep(pause)
	}
	slices.Sort(times)
	m.add(what+", p50", "µs", percentile(times, 50))
	m.add(what+", p99", "µs", percentile(times, 99))
}

func percentile(sorted []float64, p int) float64 { return sorted[len(sorted)*p/100] }

// startInSandbox measures a start in the sandbox that clients request by default.
func startInSandbox(m *sample, _ *server, c *client) {
	dir, err := os.MkdirTemp("/var/tmp", "exec-server-bench-")
	if !m.check(err) {
		return
	}
	defer os.RemoveAll(dir)
	entry := func(kind, more, access string) string {
		return fmt.Sprintf(`{"path":{"type":"special","value":{"kind":%q%s}},"access":%q}`, kind, more, access)
	}
	entries := entry("root", "", "read") + "," + entry("project_roots", "", "write") + "," + entry("slash_tmp", "", "write")
	for _, name := range []string{".git", ".agents", ".codex", ".aws"} {
		entries += "," + entry("project_roots", fmt.Sprintf(`,"subpath":%q`, name), "read")
	}
	sandbox := json.RawMessage(fmt.Sprintf(`{"permissions":{"type":"managed","network":"restricted","file_system":`+
		`{"type":"restricted","entries":[%s]}},"cwd":"file://%s","workspaceRoots":["file://%[2]s"],"windowsSandboxLevel":"disabled"}`, entries, dir))
	latencies(m, "start to closed in a sandbox", startsConfined, 0, func() { c.run(false, sandbox, "/bin/true") })
}

func startsInFlight(m *sample, _ *server, c *client) {
	begin := time.Now()
	c.inFlight(startsFlying, flying, func() { c.sendStart(false, nil, "/bin/true") }, &c.closed)
	m.add("starts, 64 in flight", "/s", startsFlying/time.Since(begin).Seconds())
}

func fileParams(path string) protocol.FileParams {
	return protocol.FileParams{Path: protocol.URIPath(path), FollowSymlinks: true}
}

// withFile calls f with a file of zeros in a directory of its own.
func withFile(m *sample, size int, f func(path string)) {
	dir, err := os.MkdirTemp("", "bench")
	if !m.check(err) {
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "file")
	if m.check(os.WriteFile(path, make([]byte, size), 0o644)) {
		f(path)
	}
}

// rate measures how fast f reads or writes a file.
func rate(m *sample, name string, f func()) {
	begin := time.Now()
	for range fileTimes {
		f()
	}
	m.add(name, "MB/s", fileTimes*fileBytes/1e6/time.Since(begin).Seconds())
}

func readFile(m *sample, _ *server, c *client) {
	withFile(m, fileBytes, func(path string) {
		rate(m, "`fs/readFile` of 8 MiB", func() {
			encoded, _ := member(c.call(protocol.MethodReadFile, fileParams(path)), `"dataBase64":"`, '"')
			if len(encoded) != base64.StdEncoding.EncodedLen(fileBytes) {
				c.fail(fmt.Errorf("fs/readFile answered %d of %d bytes", len(encoded)/4*3, fileBytes))
			}
		})
	})
}

func writeFile(m *sample, _ *server, c *client) {
	withFile(m, 0, func(path string) {
		write := encode(protocol.MethodWriteFile, protocol.WriteFileParams{
			Path: protocol.URIPath(path), FollowSymlinks: true, DataBase64: protocol.EncodeBase64(make([]byte, fileBytes)),
		})
		rate(m, "`fs/writeFile` of 8 MiB", func() { c.again(write) })
		if info, err := os.Stat(path); m.check(err) && info.Size() != fileBytes {
			c.fail(fmt.Errorf("the file has %d of %d bytes", info.Size(), fileBytes))
		}
	})
}

func metadata(m *sample, _ *server, c *client) {
	get := encode(protocol.MethodGetMetadata, fileParams("/usr/bin/env"))
	begin := time.Now()
	c.inFlight(metadataMany, flying, func() { c.send(get) }, &c.answered)
	m.add("`fs/getMetadata`, 64 in flight", "/s", metadataMany/time.Since(begin).Seconds())
}

// memory measures the server idle, and then with connections and processes that do nothing.
func memory(m *sample, s *server, c *client) {
	settled := func() float64 {
		time.Sleep(2 * time.Second)
		return s.memory()
	}
	idle := settled()
	m.add("idle memory", "MB", idle/1e6)
	for range idleMany {
		m.check(s.connect(m.ctx).err)
	}
	connected := settled()
	m.add("memory of an idle connection", "kB", (connected-idle)/1e3/idleMany)
	c.inFlight(idleMany, flying, func() {
		c.sendStart(false, nil, "/bin/sleep", "60") // it ends by itself, whatever the server does
	}, &c.answered)
	m.add("memory of a live process", "kB", (settled()-connected)/1e3/idleMany)
}
