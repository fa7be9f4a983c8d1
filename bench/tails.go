//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"execserver/protocol"
)

// The tails are the longest times that a client waits while a neighbour keeps the server
// busy. The neighbour is a process of its own with its own connection and session. This
// program only types and requests metadata, one after the other. The server, the
// neighbour, its commands and this program share the processors.

const tailsTime = 3 * time.Second // for each neighbour in each round

// tailsPrefix begins the name of each of these cases.
const tailsPrefix = "tails beside "

// tailsCases returns a case for each neighbour.
func tailsCases() []benchCase {
	list := make([]benchCase, len(neighbours))
	for i, n := range neighbours {
		list[i] = benchCase{tailsPrefix + n.name, func(ctx context.Context, s *server, m *sample) error {
			return tails(ctx, s, m, n)
		}, nil}
	}
	return list
}

// tails measures a terminal and metadata beside a neighbour. It also measures a relay
// that only passes keys between a connection and a terminal: the delay there is due to
// the machine.
func tails(ctx context.Context, s *server, m *sample, n neighbour) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if n.prepare != nil {
		if err := n.prepare(dir); err != nil {
			return err
		}
		syscall.Sync() // later writes do not wait for the prepared files
	}
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	key, err := c.typist(ctx)
	if err != nil {
		return err
	}
	metadata, err := c.request(protocol.MethodGetMetadata, fileParams("/usr/bin/env"))
	if err != nil {
		return err
	}
	relay, stop, err := peer(ctx, askKeys)
	if err != nil {
		return err
	}
	defer stop()
	relayed, err := typistAt(relay)
	if err != nil {
		return err
	}
	busy, err := startNeighbour(ctx, n.name, s.url, dir)
	if err != nil {
		return err
	}
	defer busy.kill()
	probes := []*probe{
		{name: "echo", ask: key},
		{name: "metadata", ask: func() error { _, err := metadata.call(ctx); return err }},
		{name: "bare relay", ask: relayed},
	}
	begin := time.Now()
	for time.Since(begin) < tailsTime && !busy.ended() {
		for _, p := range probes {
			if err := p.once(); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		time.Sleep(keyPause)
	}
	elapsed := time.Since(begin)
	done, err := busy.stop()
	if err != nil {
		return err
	}
	for _, p := range probes {
		if err := p.report(m); err != nil {
			return err
		}
	}
	m.add("neighbour", n.unit, higher, done/elapsed.Seconds())
	return nil
}

// probe is an operation that tails measures again and again.
type probe struct {
	name  string
	ask   func() error
	times []float64 // µs
}

func (p *probe) once() error {
	begin := time.Now()
	err := p.ask()
	p.times = append(p.times, micros(time.Since(begin)))
	return err
}

func (p *probe) report(m *sample) error {
	if len(p.times) == 0 {
		return errors.New("the neighbour had ended before there was anything to measure")
	}
	slices.Sort(p.times)
	m.add(p.name+" p50", "µs", lower, percentile(p.times, 50))
	m.add(p.name+" p99", "µs", lower, percentile(p.times, 99))
	m.addWorst(p.name+" worst", "µs", p.times[len(p.times)-1])
	return nil
}

// busyNeighbour is the process of a neighbour.
type busyNeighbour struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	output bytes.Buffer  // how much it has done, once it has ended
	over   chan struct{} // closed when it has ended
	err    error         // why it ended; valid when over is closed
}

// startNeighbour starts the process and returns when it is connected.
func startNeighbour(ctx context.Context, name, url, dir string) (*busyNeighbour, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &busyNeighbour{cmd: exec.CommandContext(ctx, self, neighbourCommand, name, url, dir), over: make(chan struct{})}
	b.cmd.Stderr = os.Stderr
	stdin, err := b.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	b.stdin = stdin
	stdout, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(stdout, make([]byte, len(connectedLine))); err != nil {
		_ = b.cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("the neighbour did not connect: %w", err), b.cmd.Wait())
	}
	go func() {
		defer close(b.over)
		_, err := io.Copy(&b.output, stdout)
		b.err = errors.Join(err, b.cmd.Wait())
	}()
	return b, nil
}

func (b *busyNeighbour) ended() bool {
	select {
	case <-b.over:
		return true
	default:
		return false
	}
}

// stop ends the neighbour and returns how much it has done.
func (b *busyNeighbour) stop() (done float64, err error) {
	_ = b.stdin.Close() // it may have ended
	<-b.over
	if b.err != nil {
		return 0, fmt.Errorf("neighbour: %w", b.err)
	}
	return strconv.ParseFloat(strings.TrimSpace(b.output.String()), 64)
}

func (b *busyNeighbour) kill() {
	_ = b.cmd.Process.Kill() // it may have ended
	<-b.over
}
