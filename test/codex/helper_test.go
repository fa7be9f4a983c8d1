//go:build unix

package codex

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"execserver/internal/testkit"
)

// helpers are the programs which the scenarios' commands run as "$HELPER" name args. They
// stand in for what a test machine may not have, and end by themselves some minutes after
// a test that lost them.
var helpers = map[string]func(args []string){
	"await":  await,
	"listen": listen,
	"get":    get,
	"log":    logLines,
	"meet":   meet,
	"spew":   spew,
	"stream": stream,
	"tree":   tree,
}

const helperLife = 5 * time.Minute

// await waits for a file.
func await(args []string) {
	wait(func() error { _, err := os.Stat(args[0]); return err })
}

// listen answers "alive" to everyone who connects, and writes its address to a file.
func listen(args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	time.AfterFunc(helperLife, func() { os.Exit(1) })
	must(os.WriteFile(args[0]+".new", []byte(l.Addr().String()), 0o644))
	must(os.Rename(args[0]+".new", args[0]))
	for {
		conn, err := l.Accept()
		must(err)
		_, _ = fmt.Fprintln(conn, "alive")
		conn.Close()
	}
}

// get waits for the file of a listen and prints what that answers.
func get(args []string) {
	var addr []byte
	wait(func() (err error) { addr, err = os.ReadFile(args[0]); return err })
	conn, err := net.DialTimeout("tcp", string(addr), 5*time.Second)
	must(err)
	_, err = io.Copy(os.Stdout, conn)
	must(err)
}

// logLines prints numbered lines for so many seconds, 600 ms apart, and then makes a file.
func logLines(args []string) {
	seconds, err := strconv.ParseFloat(args[1], 64)
	must(err)
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for n := 1; time.Now().Before(end); n++ {
		_, err := fmt.Println("line", n)
		must(err)
		time.Sleep(600 * time.Millisecond)
	}
	must(os.WriteFile(args[0], nil, 0o644))
}

// meet ends when as many of it as told run at the same time, in the given folder.
func meet(args []string) {
	count, err := strconv.Atoi(args[1])
	must(err)
	_, err = os.CreateTemp(args[0], "meet-")
	must(err)
	wait(func() error {
		here, err := filepath.Glob(filepath.Join(args[0], "meet-*"))
		if err == nil && len(here) < count {
			err = fmt.Errorf("%d of %d are here", len(here), count)
		}
		return err
	})
	fmt.Println("met")
}

// spew writes a line HEAD, the given number of bytes and a line TAIL.
func spew(args []string) {
	size, err := strconv.Atoi(args[0])
	must(err)
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintln(out, "HEAD")
	for n := 0; size > 0; n++ {
		line := fmt.Sprintf("%07d %s\n", n, strings.Repeat("x", 71))
		line = line[max(0, len(line)-size):]
		size -= len(line)
		_, err := out.WriteString(line)
		must(err)
	}
	fmt.Fprintln(out, "TAIL")
	must(out.Flush())
}

// stream prints numbered lines. It makes the file up after some. When it finds the file
// broken, it prints some more and makes the file written. When it finds the file go, it prints
// some more, and how many there were.
func stream([]string) {
	line, end := 0, time.Now().Add(helperLife)
	for _, turn := range []struct{ await, then string }{{".", "up"}, {"broken", "written"}, {"go", "over"}} {
		for found := 0; found < 100; time.Sleep(5 * time.Millisecond) {
			line++
			_, err := fmt.Println("line", line)
			must(err)
			if _, err := os.Stat(turn.await); err == nil {
				found++
			}
			if time.Now().After(end) {
				must(fmt.Errorf("the file %s does not come", turn.await))
			}
		}
		must(os.WriteFile(turn.then, nil, 0o644))
	}
	fmt.Println("end", line)
}

// tree starts a child, writes a file and does nothing. A child that is a daemon has a session
// of its own: only a server that keeps its books finds it again.
func tree(args []string) {
	child := exec.Command("sleep", strconv.Itoa(int(helperLife.Seconds())))
	if args[1] == "daemon" {
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	must(child.Start())
	must(os.WriteFile(args[0], nil, 0o644))
	time.Sleep(helperLife)
}

func wait(condition func() error) {
	deadline := time.Now().Add(testkit.Patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			must(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(99)
	}
}
