//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"execserver/protocol"
)

// neighbourCommand is the hidden first argument with which this program becomes a
// neighbour.
const neighbourCommand = "neighbour"

// Sizes of the work of neighbours.
const (
	startsBatch = 100
	readBytes   = 16 << 20
	hashBytes   = 32 << 20
	treeFiles   = 50_000
	trees       = 2
)

// neighbour keeps the server busy.
type neighbour struct {
	name    string
	unit    string                                                 // of the work that it counts
	prepare func(dir string) error                                 // creates the files for work; may be nil
	work    func(ctx context.Context, c *client, dir string) error // adds to done; returns only after a failure
}

// neighbours are in the order of the table.
var neighbours = []neighbour{
	{"a flood", "MiB/s", nil, flood},
	{"100 starts at once", "starts/s", nil, startBatches},
	{"16 MiB reads", "MiB/s", makeZeros(readBytes), readAgain},
	{"walks of /usr/lib", "walks/s", nil, walkAgain},
	{"a command that hashes", "MiB/s", makeZeros(hashBytes), hashByCommand},
	{"hashes by the server", "MiB/s", makeZeros(hashBytes), hashByServer},
	{"removals of 50,000 files", "files/s", makeTrees, removeTrees},
}

// connectedLine is the line that a neighbour prints before it begins.
const connectedLine = "connected\n"

// runNeighbour is the neighbour's process. It works until its stdin ends, and prints how
// much it has done.
func runNeighbour(name, url, dir string) error {
	i := slices.IndexFunc(neighbours, func(n neighbour) bool { return n.name == name })
	if i < 0 {
		return fmt.Errorf("no neighbour is called %q", name)
	}
	ctx := context.Background()
	c, err := dial(ctx, url)
	if err != nil {
		return err
	}
	fmt.Print(connectedLine)
	stdinEnded, worked := make(chan struct{}), make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the other end of the pipe
		close(stdinEnded)
	}()
	go func() { worked <- neighbours[i].work(ctx, c, dir) }()
	select {
	case <-stdinEnded:
	case err = <-worked:
	}
	fmt.Println(done.Load())
	return err
}

// done counts what a neighbour has done, in its unit.
var done atomic.Int64

// again calls f until it fails, and adds n to done after each call.
func again(n int64, f func() error) error {
	for {
		if err := f(); err != nil {
			return err
		}
		done.Add(n)
	}
}

func flood(ctx context.Context, c *client, _ string) error {
	var bytes int64
	p, err := c.start(ctx, false, func(encoded []byte) {
		bytes += int64(len(encoded)) / 4 * 3
		done.Store(bytes >> 20)
	}, "/bin/cat", "/dev/zero")
	if err != nil {
		return err
	}
	return p.wait(ctx)
}

func startBatches(ctx context.Context, c *client, _ string) error {
	return again(startsBatch, func() error {
		return inFlight(startsBatch, startsBatch, func() error { return c.runTrue(ctx) })
	})
}

func zerosFile(dir string) string { return filepath.Join(dir, "zeros") }

func makeZeros(size int) func(dir string) error {
	return func(dir string) error { return os.WriteFile(zerosFile(dir), make([]byte, size), 0o644) }
}

func readAgain(ctx context.Context, c *client, dir string) error {
	get, err := c.request(protocol.MethodReadFile, fileParams(zerosFile(dir)))
	if err != nil {
		return err
	}
	return again(readBytes>>20, func() error {
		text, err := get.call(ctx)
		if err == nil && len(text) < base64.StdEncoding.EncodedLen(readBytes) {
			err = fmt.Errorf("fs/readFile answered %.200q", text)
		}
		c.reuse(text)
		return err
	})
}

func walkAgain(ctx context.Context, c *client, _ string) error {
	walk, err := c.request(protocol.MethodWalk, protocol.WalkParams{
		Path:    protocol.URIPath("/usr/lib"),
		Options: protocol.WalkOptions{MaxDepth: 64, MaxDirectories: 10_000, MaxEntries: 50_000},
	})
	if err != nil {
		return err
	}
	return again(1, func() error {
		text, err := walk.call(ctx)
		c.reuse(text)
		return err
	})
}

// hashByCommand lets a command hash a file again and again.
func hashByCommand(ctx context.Context, c *client, dir string) error {
	var left int // bytes of a line that have not arrived yet
	p, err := c.start(ctx, false, func(encoded []byte) {
		left += len(encoded)
		for line := base64.StdEncoding.EncodedLen(64 + len("  -\n")); left >= line; left -= line {
			done.Add(hashBytes >> 20)
		}
	}, "/bin/sh", "-c", `while :; do sha256sum <"$0"; done`, zerosFile(dir))
	if err != nil {
		return err
	}
	return p.wait(ctx)
}

// hashByServer lets the server hash a file: a write on the condition of a digest that the
// file does not have does nothing else. On a server without such conditions, such as the
// released one, a command hashes the file.
func hashByServer(ctx context.Context, c *client, dir string) error {
	if !bytes.Contains(c.hello, []byte(`"fsWriteFileCondition":true`)) {
		return hashByCommand(ctx, c, dir)
	}
	path := zerosFile(dir)
	digest := strings.Repeat("0", 64)
	write, err := c.request(protocol.MethodWriteFile, protocol.WriteFileParams{
		Path: protocol.URIPath(path), DataBase64: protocol.EncodeBase64([]byte("x")), FollowSymlinks: true, ExpectedSHA256: &digest,
	})
	if err != nil {
		return err
	}
	return again(hashBytes>>20, func() error {
		if _, err := write.call(ctx); err == nil || !strings.Contains(err.Error(), "file has changed") {
			return fmt.Errorf("fs/writeFile on a condition that does not hold: %w", err)
		}
		return nil
	})
}

func treeIn(dir string, i int) string { return filepath.Join(dir, "tree"+strconv.Itoa(i)) }

// makeTrees creates trees of files, a hundred in each directory.
func makeTrees(dir string) error {
	for i := range trees {
		for n := range treeFiles {
			sub := filepath.Join(treeIn(dir, i), strconv.Itoa(n/100))
			if n%100 == 0 {
				if err := os.MkdirAll(sub, 0o755); err != nil {
					return err
				}
			}
			f, err := os.Create(filepath.Join(sub, strconv.Itoa(n)))
			if err != nil {
				return err
			}
			_ = f.Close() // nothing was written
		}
	}
	return nil
}

// removeTrees removes the trees of makeTrees.
func removeTrees(ctx context.Context, c *client, dir string) error {
	for i := range trees {
		if _, err := c.call(ctx, protocol.MethodRemove, protocol.RemoveParams{
			Path: protocol.URIPath(treeIn(dir, i)), Recursive: true, FollowSymlinks: true,
		}); err != nil {
			return err
		}
		done.Add(treeFiles)
	}
	return nil
}
