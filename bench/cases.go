//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
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
	metadataAlone  = 2000
	metadataMany   = 20_000
	manyRequests   = 20_000
	terminated     = 1000
	idleClients    = 200
	idleProcesses  = 200
)

// cases are the measurements, each with its floor: the time of a perfect server.
var cases = []benchCase{
	{"pipe output", pipeOutput, pipeFloors},
	{"terminal output", terminalOutput, terminalFloor},
	{"seq", seqOutput, seqFloor},
	{"keystroke", keystroke, keystrokeFloors},
	{"keystroke beside a flood", keystrokeBesideFlood, nil},
	{"start to closed", startToClosed, spawnFloor},
	{"start in a sandbox", startInSandbox, spawnFloor},
	{"starts in flight", startsInFlight, startsFloor},
	{"requests in flight", requestsInFlight, nil},
	{"read file", readFile, readFileFloor},
	{"write file", writeFile, writeFileFloor},
	{"metadata", metadata, metadataFloor},
	{"terminate", terminateMany, terminateFloor},
	{"memory", memory, nil},
	{"stalled reader", stalledReader, nil},
}

// transfer measures the output of one command.
func transfer(ctx context.Context, s *server, m *sample, tty bool, want int64, argv ...string) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	cpu, begin := s.cpu(), time.Now()
	p, err := c.start(ctx, tty, nil, argv...)
	if err != nil {
		return err
	}
	if err := p.wait(ctx); err != nil {
		return err
	}
	elapsed := time.Since(begin)
	if p.bytes != want {
		return fmt.Errorf("%d bytes came of %d", p.bytes, want)
	}
	m.add("throughput", "MB/s", higher, float64(want)/1e6/elapsed.Seconds())
	m.add("server CPU per GB", "s", lower, (s.cpu()-cpu).Seconds()/(float64(want)/1e9))
	m.add("chunk", "kB", higher, float64(want)/1e3/float64(p.chunks))
	return nil
}

func zeros(n int) []string { return []string{"/usr/bin/head", "-c", strconv.Itoa(n), "/dev/zero"} }

func pipeOutput(ctx context.Context, s *server, m *sample) error {
	return transfer(ctx, s, m, false, pipeBytes, zeros(pipeBytes)...)
}

func terminalOutput(ctx context.Context, s *server, m *sample) error {
	return transfer(ctx, s, m, true, terminalBytes, zeros(terminalBytes)...)
}

func seqOutput(ctx context.Context, s *server, m *sample) error {
	return transfer(ctx, s, m, false, seqBytes, "/usr/bin/seq", "1", strconv.Itoa(seqLast))
}

// rawCat echoes keys as an editor does.
var rawCat = []string{"/bin/sh", "-c", "stty raw -echo; echo ready; exec cat"}

// keystroke measures the time from a key to its echo. It pauses between keys as people
// do, but not as long.
func keystroke(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	return c.keystrokes(ctx, m)
}

// keystrokeBesideFlood is like keystroke while another process on the connection writes
// as much as the connection carries.
func keystrokeBesideFlood(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	flood, err := c.start(ctx, false, nil, "/bin/cat", "/dev/zero")
	if err != nil {
		return err
	}
	if err := c.keystrokes(ctx, m); err != nil {
		return err
	}
	return c.terminate(ctx, []*proc{flood})
}

func (c *client) keystrokes(ctx context.Context, m *sample) error {
	key, err := c.typist(ctx)
	if err != nil {
		return err
	}
	return latencies(ctx, m, "echo", keys, keyPause, key)
}

// typist starts a terminal that echoes, and returns a function that types a key
// and waits for its echo.
func (c *client) typist(ctx context.Context) (key func() error, err error) {
	came := make(chan struct{}, 16)
	p, err := c.start(ctx, true, func([]byte) { came <- struct{}{} }, rawCat...)
	if err != nil {
		return nil, err
	}
	if _, err := readUntil(ctx, c, came); err != nil {
		return nil, err
	}
	n := 0
	return func() error {
		n++
		id := strconv.Itoa(n)
		if _, err := c.begin(protocol.MethodWrite, protocol.WriteParams{ProcessID: p.id, WriteID: &id, Chunk: []byte("x")}); err != nil {
			return err
		}
		_, err := readUntil(ctx, c, came)
		return err
	}, nil
}

// latencies measures n times how long f takes.
func latencies(ctx context.Context, m *sample, what string, n int, pause time.Duration, f func() error) error {
	times := make([]float64, n)
	for i := range times {
		begin := time.Now()
		if err := f(); err != nil {
			return err
		}
		times[i] = micros(time.Since(begin))
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	slices.Sort(times)
	m.add(what+" p50", "µs", lower, percentile(times, 50))
	m.add(what+" p99", "µs", lower, percentile(times, 99))
	return nil
}

func micros(d time.Duration) float64 { return d.Seconds() * 1e6 }

func percentile(sorted []float64, p int) float64 { return sorted[len(sorted)*p/100] }

func startToClosed(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	return latencies(ctx, m, "start to closed", startsAlone, 0, func() error { return c.runTrue(ctx) })
}

func (c *client) runTrue(ctx context.Context) error {
	p, err := c.start(ctx, false, nil, "/bin/true")
	if err != nil {
		return err
	}
	return p.wait(ctx)
}

// inFlight calls f n times, from as many goroutines as may be in flight.
func inFlight(n, flying int, f func() error) error {
	var left atomic.Int64
	left.Store(int64(n))
	results := make(chan error, flying)
	for range flying {
		go func() {
			for left.Add(-1) >= 0 {
				if err := f(); err != nil {
					left.Store(0)
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	var err error
	for range flying {
		err = errors.Join(err, <-results)
	}
	return err
}

func startsInFlight(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	cpu, begin := s.cpu(), time.Now()
	if err := inFlight(startsFlying, flying, func() error { return c.runTrue(ctx) }); err != nil {
		return err
	}
	m.add("starts, 64 in flight", "/s", higher, startsFlying/time.Since(begin).Seconds())
	m.add("server CPU per start", "ms", lower, (s.cpu()-cpu).Seconds()*1e3/startsFlying)
	return nil
}

// requestsInFlight sends many requests before it reads a reply.
func requestsInFlight(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	stop := context.AfterFunc(ctx, c.close) // a server may stop reading until somebody reads its replies
	defer stop()
	begin := time.Now()
	answers := make([]chan reply, 0, manyRequests)
	for range manyRequests {
		answer, err := c.begin(protocol.MethodGetMetadata, fileParams("/"))
		if err != nil {
			break
		}
		answers = append(answers, answer)
	}
	answered := 0
	for _, answer := range answers {
		if _, err := c.await(ctx, answer); err != nil {
			break
		}
		answered++
	}
	m.add("answered of 20,000 in flight", "", higher, float64(answered))
	if answered == manyRequests {
		m.add("20,000 in flight", "s", lower, time.Since(begin).Seconds())
	}
	return nil
}

func fileParams(path string) protocol.FileParams {
	return protocol.FileParams{Path: protocol.URIPath(path), FollowSymlinks: true}
}

// file creates a file of zeros in a directory of its own.
func file(size int) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "file")
	return path, func() { _ = os.RemoveAll(dir) }, os.WriteFile(path, make([]byte, size), 0o644)
}

func fileRate(m *sample, begin time.Time) {
	m.add("throughput", "MB/s", higher, fileTimes*fileBytes/1e6/time.Since(begin).Seconds())
}

func readFile(ctx context.Context, s *server, m *sample) error {
	path, remove, err := file(fileBytes)
	if err != nil {
		return err
	}
	defer remove()
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	for range fileTimes {
		text, err := c.call(ctx, protocol.MethodReadFile, fileParams(path))
		if err != nil {
			return err
		}
		if encoded, ok := member(text, `"dataBase64":"`, '"'); !ok || len(encoded) != base64.StdEncoding.EncodedLen(fileBytes) {
			return fmt.Errorf("fs/readFile answered %d of %d bytes", len(encoded)/4*3, fileBytes)
		}
		c.reuse(text)
	}
	fileRate(m, begin)
	return nil
}

func writeFile(ctx context.Context, s *server, m *sample) error {
	path, remove, err := file(0)
	if err != nil {
		return err
	}
	defer remove()
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	request, err := c.request(protocol.MethodWriteFile, protocol.WriteFileParams{
		Path: protocol.URIPath(path), FollowSymlinks: true, DataBase64: protocol.EncodeBase64(make([]byte, fileBytes)),
	})
	if err != nil {
		return err
	}
	begin := time.Now()
	for range fileTimes {
		if _, err := request.call(ctx); err != nil {
			return fmt.Errorf("fs/writeFile: %w", err)
		}
	}
	fileRate(m, begin)
	if info, err := os.Stat(path); err != nil || info.Size() != fileBytes {
		return fmt.Errorf("the file that was written: %v, %w", info, err)
	}
	return nil
}

func metadata(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	params, err := json.Marshal(fileParams("/usr/bin/env"))
	if err != nil {
		return err
	}
	get := func() error {
		_, err := c.call(ctx, protocol.MethodGetMetadata, json.RawMessage(params))
		return err
	}
	if err := latencies(ctx, m, "alone", metadataAlone, 0, get); err != nil {
		return err
	}
	begin := time.Now()
	if err := inFlight(metadataMany, flying, get); err != nil {
		return err
	}
	m.add("64 in flight", "/s", higher, metadataMany/time.Since(begin).Seconds())
	return nil
}

// sleepers starts n processes that do nothing.
func (c *client) sleepers(ctx context.Context, n int) ([]*proc, error) {
	procs := make([]*proc, 0, n)
	for range n {
		p, err := c.start(ctx, false, nil, "/bin/sleep", "10000")
		if err != nil {
			return procs, err
		}
		procs = append(procs, p)
	}
	return procs, nil
}

func (c *client) terminate(ctx context.Context, procs []*proc) error {
	var next atomic.Int64
	err := inFlight(len(procs), min(flying, len(procs)), func() error {
		p := procs[next.Add(1)-1]
		_, err := c.call(ctx, protocol.MethodTerminate, protocol.TerminateParams{ProcessID: p.id})
		return err
	})
	for _, p := range procs {
		if err == nil {
			_, err = readUntil(ctx, c, p.done)
		}
	}
	return err
}

func terminateMany(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	procs, err := c.sleepers(ctx, terminated)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := c.terminate(ctx, procs); err != nil {
		return err
	}
	m.add("1,000 terminated, 64 in flight", "ms", lower, time.Since(begin).Seconds()*1e3)
	if procs, err = c.sleepers(ctx, terminated); err != nil {
		return err
	}
	begin = time.Now()
	for _, p := range procs {
		if err := c.terminate(ctx, []*proc{p}); err != nil {
			return err
		}
	}
	m.add("1,000 terminated, one by one", "ms", lower, time.Since(begin).Seconds()*1e3)
	return nil
}

// settle gives a server time to become idle.
func settle(ctx context.Context) error {
	select {
	case <-time.After(2 * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func memory(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	size, err := s.binarySize()
	if err != nil {
		return err
	}
	m.add("binary", "MB", lower, size/1e6)
	if err := settle(ctx); err != nil {
		return err
	}
	idle := s.rss()
	m.add("idle", "MB", lower, idle/1e6)
	for range idleClients {
		if _, err := s.connect(ctx); err != nil {
			return err
		}
	}
	if err := settle(ctx); err != nil {
		return err
	}
	connected := s.rss()
	m.add("per idle connection", "kB", lower, (connected-idle)/1e3/idleClients)
	procs, err := c.sleepers(ctx, idleProcesses)
	if err != nil {
		return err
	}
	if err := settle(ctx); err != nil {
		return err
	}
	m.add("per live process", "kB", lower, (s.rss()-connected)/1e3/idleProcesses)
	return c.terminate(ctx, procs)
}

// stalledReader stops reading the output of a process that writes a GiB, and measures the
// memory of the server and the keystrokes of a neighbour.
func stalledReader(ctx context.Context, s *server, m *sample) error {
	neighbour, err := s.connect(ctx)
	if err != nil {
		return err
	}
	median := func(s *sample) float64 { return s.values["start to closed p50"].Value }
	times := func() (float64, error) {
		probe := &sample{}
		err := latencies(ctx, probe, "start to closed", startsAlone, 0, func() error { return neighbour.runTrue(ctx) })
		return median(probe), err
	}
	normal, err := times()
	if err != nil {
		return err
	}
	reader, err := s.connect(ctx)
	if err != nil {
		return err
	}
	before := s.rss()
	p, err := reader.start(ctx, false, nil, zeros(pipeBytes)...)
	if err != nil {
		return err
	}
	stalled, err := times()
	if err == nil {
		err = settle(ctx)
	}
	grown := s.rss() - before
	if err != nil {
		return err
	}
	if err := p.wait(ctx); err != nil {
		return err
	}
	if p.bytes != pipeBytes {
		return fmt.Errorf("%d bytes came of %d", p.bytes, pipeBytes)
	}
	m.add("memory growth", "MB", lower, grown/1e6)
	m.add("neighbour's start, against before", "", lower, stalled/normal)
	return nil
}
