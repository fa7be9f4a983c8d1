package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	boxName  = "box"
	greeting = "Hello from the box.\n"
)

// A box is a running server, on another machine or in its place.
type box struct {
	cmd   *exec.Cmd
	url   string
	ended chan error
}

// startBox starts the server on another machine, or else as an ordinary process, and says so.
func (d *demo) startBox(ctx context.Context) (*box, error) {
	serve := []string{"--listen", "ws://127.0.0.1:0"}
	var separate *box
	cmd, err := machineCommand(machine{
		Name:  boxName,
		Root:  filepath.Join(d.root, "box"),
		Files: map[string]string{filepath.Join(d.project, "hello.txt"): greeting},
		Links: map[string]string{"/opt/exec-server": d.server},
		Dir:   d.project,
		Argv:  append([]string{"/opt/exec-server"}, serve...),
		Env:   []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "SHELL=/bin/sh", "LANG=C.UTF-8"},
	})
	if err == nil {
		separate, err = startServer(ctx, cmd)
	}
	if err == nil {
		d.hostname = boxName
		return separate, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	fmt.Fprintf(d.out, "note      no other machine can be had here, so the box is an ordinary process: %v\n", err)
	if d.hostname, err = os.Hostname(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(d.project, "hello.txt"), []byte(greeting), 0o600); err != nil {
		return nil, err
	}
	cmd = exec.Command(d.server, serve...)
	cmd.Dir = d.project
	return startServer(ctx, cmd)
}

// startServer starts the command of a server, and waits for the line with its URL.
func startServer(ctx context.Context, cmd *exec.Cmd) (*box, error) {
	var said strings.Builder
	cmd.Stderr = &said
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b := &box{cmd: cmd, ended: make(chan error, 1)}
	url := make(chan string, 1)
	go func() { // ends with the server
		out := bufio.NewReader(stdout)
		if line, err := out.ReadString('\n'); err == nil {
			url <- strings.TrimSpace(line)
		}
		_, _ = io.Copy(io.Discard, out)
		b.ended <- cmd.Wait()
	}()
	select {
	case b.url = <-url:
		return b, nil
	case err := <-b.ended:
		return nil, errors.Join(err, errors.New(strings.TrimSpace(said.String())))
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(patience):
		err = fmt.Errorf("the server has not said where it listens for %v", patience)
	}
	b.stop()
	return nil, err
}

// stop ends the server, and with it everything that it has started.
func (b *box) stop() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-b.ended:
	case <-time.After(10 * time.Second):
		_ = b.cmd.Process.Kill()
		<-b.ended
	}
}
