//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"execserver/protocol"
)

// The tails are the longest times that a client waits while a neighbour keeps the server
// busy. The neighbour is a process of its own with its own connection and session. This
// program only types and requests metadata, one after the other.

const (
	tailsTime   = 3 * time.Second // for each neighbour in each round
	startsBatch = 100
	readBytes   = 16 << 20
	treeFiles   = 50_000
	trees       = 2
)

// neighbour keeps the server busy. Its work ends with c, or when nothing is left to do.
type neighbour struct {
	name    string
	prepare func(dir string) error // creates the files for work; may be nil
	work    func(c *client, dir string)
}

// neighbours are in the order of the second table in docs/performance.md.
var neighbours = []neighbour{
	{"a flood", nil, func(c *client, _ string) { c.run(false, nil, "/bin/cat", "/dev/zero") }},
	{"100 starts at once", nil, startBatches},
	{"16 MiB reads", makeZeros, readAgain},
	{"walks of /usr/lib", nil, walkAgain},
	{"removals of 50,000 files", makeTrees, removeTrees},
}

// tailsCases returns a case for each neighbour.
func tailsCases() (list []benchCase) {
	for _, n := range neighbours {
		list = append(list, benchCase{"tails, " + n.name, func(m *sample, s *server, c *client) { n.tails(m, s, c) }, nil})
	}
	return list
}

// tails measures a terminal and metadata while the neighbour works. It also measures a relay
// that only passes keys between a connection and a terminal: the delay there is due to the
// machine.
func (n *neighbour) tails(m *sample, s *server, c *client) {
	dir, err := os.MkdirTemp("", "bench")
	if !m.check(err) {
		return
	}
	defer os.RemoveAll(dir)
	if n.prepare != nil {
		m.check(n.prepare(dir))
		syscall.Sync() // later writes do not wait for the prepared files
	}
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	address, _, err := startSelf(ctx, "relay")
	if !m.check(err) {
		return
	}
	relay, err := net.Dial("tcp", address)
	if !m.check(err) {
		return
	}
	defer relay.Close()
	key, relayed, get := c.typist(), typistAt(m, relay), encode(protocol.MethodGetMetadata, fileParams("/usr/bin/env"))
	_, ended, err := startSelf(ctx, "neighbour", n.name, s.url, dir)
	if !m.check(err) {
		return
	}
	probes := []func(){key, func() { c.again(get) }, relayed}
	times := make([][]float64, len(probes))
	busy := true
	for begin := time.Now(); busy && time.Since(begin) < tailsTime; time.Sleep(keyPause) {
		for i, ask := range probes {
			begin := time.Now()
			ask()
			times[i] = append(times[i], time.Since(begin).Seconds()*1e3)
		}
		select {
		case err := <-ended:
			m.check(err)
			busy = false
		default:
		}
	}
	for i, what := range []string{"key", "metadata", "key through a bare relay"} {
		slices.Sort(times[i])
		m.add(n.name+": "+what+", p50", "ms", percentile(times[i], 50))
		m.add(n.name+": "+what+", p99", "ms", percentile(times[i], 99))
		m.add(n.name+": "+what+", worst", "ms", times[i][len(times[i])-1])
	}
}

// startSelf starts this program with other arguments until ctx ends, and returns the first
// line that it prints, and how it ends.
func startSelf(ctx context.Context, args ...string) (line string, ended chan error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, err
	}
	line, err = bufio.NewReader(out).ReadString('\n')
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with ctx
	if err != nil {
		return "", nil, fmt.Errorf("%s did not begin: %w", args[0], err)
	}
	return strings.TrimSpace(line), ended, nil
}

// runRelay passes bytes between one connection and a terminal with the command of the
// keystroke case. It ends with the connection.
func runRelay() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	master, err := startTerminal(exec.Command(rawCat[0], rawCat[1:]...)) // ends with its terminal
	if err != nil {
		return err
	}
	go func() { _, _ = io.Copy(conn, struct{ io.Reader }{master}) }() // the other end notices what is missing
	_, err = io.Copy(struct{ io.Writer }{master}, conn)
	return err
}

// runNeighbour works until it is killed or has nothing left to do.
func runNeighbour(name, url, dir string) error {
	i := slices.IndexFunc(neighbours, func(n neighbour) bool { return n.name == name })
	if i < 0 {
		return fmt.Errorf("no neighbour is called %q", name)
	}
	c := dial(context.Background(), url)
	if c.err == nil {
		fmt.Println("connected")
		neighbours[i].work(c, dir)
	}
	return c.err
}

func startBatches(c *client, _ string) {
	for c.err == nil {
		c.inFlight(startsBatch, startsBatch, func() { c.sendStart(false, nil, "/bin/true") }, &c.closed)
	}
}

func makeZeros(dir string) error {
	return os.WriteFile(filepath.Join(dir, "zeros"), make([]byte, readBytes), 0o644)
}

func readAgain(c *client, dir string) {
	get := encode(protocol.MethodReadFile, fileParams(filepath.Join(dir, "zeros")))
	for c.err == nil {
		if len(c.again(get)) < base64.StdEncoding.EncodedLen(readBytes) {
			c.fail(errors.New("fs/readFile answered too little"))
		}
	}
}

func walkAgain(c *client, _ string) {
	walk := encode(protocol.MethodWalk, protocol.WalkParams{
		Path:    protocol.URIPath("/usr/lib"),
		Options: protocol.WalkOptions{MaxDepth: 64, MaxDirectories: 10_000, MaxEntries: 50_000},
	})
	for c.err == nil {
		c.again(walk)
	}
}

// makeTrees creates trees of files, a hundred in each directory.
func makeTrees(dir string) error {
	for n := range trees * treeFiles {
		sub := filepath.Join(dir, strconv.Itoa(n/treeFiles), strconv.Itoa(n/100))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(sub, strconv.Itoa(n)), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// removeTrees removes the trees of makeTrees.
func removeTrees(c *client, dir string) {
	for i := range trees {
		c.call(protocol.MethodRemove, protocol.RemoveParams{
			Path: protocol.URIPath(filepath.Join(dir, strconv.Itoa(i))), Recursive: true, FollowSymlinks: true,
		})
	}
}
