//go:build unix

// Package testkit holds the helpers that tests of several packages share: child programs
// that need no shell, waits with a deadline, and counts of descriptors and processes, to
// find leaks.
package testkit

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// childVariable names the child program in the environment.
const childVariable = "EXEC_SERVER_TEST_CHILD"

// Main runs a child program and exits, if Child made the command line of this process.
// Otherwise it returns. TestMain must call it first.
func Main() {
	if name := os.Getenv(childVariable); name != "" {
		program, ok := children[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "no child program %q\n", name)
			os.Exit(120)
		}
		program(os.Args[1:])
		os.Exit(0)
	}
}

// Child returns the command line and the environment that start a child program.
func Child(name string, args ...string) (argv []string, env map[string]string) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return append([]string{self}, args...), map[string]string{
		childVariable: name,
		"PATH":        os.Getenv("PATH"),
		"GORACE":      "atexit_sleep_ms=0", // or a race-enabled child takes a second to exit
	}
}

var children = map[string]func(args []string){
	"exit":    childExit,
	"signal":  childSignal,
	"count":   childCount,
	"pattern": childPattern,
	"cat":     func([]string) { _, _ = io.Copy(os.Stdout, os.Stdin) },
	"echo":    func(args []string) { fmt.Println(strings.Join(args, " ")) },
	"flood":   childFlood,
	"hold":    childHold,
	"idle":    func([]string) { time.Sleep(time.Hour) },
	"numbers": childNumbers,
	"drain":   childDrain,
	"close0":  childCloseStdin,
	"use":     childUse,
	"spin":    childSpin,

	"foreground": childForeground,
}

// childExit exits with a code.
func childExit(args []string) {
	code, _ := strconv.Atoi(args[0])
	os.Exit(code)
}

// childSignal kills itself.
func childSignal(args []string) {
	n, _ := strconv.Atoi(args[0])
	_ = syscall.Kill(os.Getpid(), syscall.Signal(n))
	select {}
}

// Pattern returns n bytes of the output of "count": 8-byte numbers in sequence.
func Pattern(n int64) []byte {
	b := make([]byte, 0, n+8)
	for i := uint64(0); int64(len(b)) < n; i++ {
		b = binary.BigEndian.AppendUint64(b, i)
	}
	return b[:n]
}

// childCount writes Pattern to stdout as fast as it can. After each write it stores the
// number of bytes written so far in a file.
func childCount(args []string) {
	file, err := os.OpenFile(args[0], os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		os.Exit(121)
	}
	var total int64
	var count [8]byte
	buf := make([]byte, 0, 4096)
	for i := uint64(0); ; {
		buf = buf[:0]
		for len(buf) < 4096 {
			buf = binary.BigEndian.AppendUint64(buf, i)
			i++
		}
		for rest := buf; len(rest) > 0; {
			// The runtime's own signals interrupt a write to a terminal, which
			// then returns early.
			n, err := syscall.Write(1, rest)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				os.Exit(122)
			}
			rest = rest[n:]
			total += int64(n)
			binary.BigEndian.PutUint64(count[:], uint64(total))
			if _, err := file.WriteAt(count[:], 0); err != nil {
				os.Exit(123)
			}
		}
	}
}

// childPattern writes n bytes of Pattern to stdout, and exits with code 9.
func childPattern(args []string) {
	n, _ := strconv.ParseInt(args[0], 10, 64)
	w := bufio.NewWriterSize(os.Stdout, 32<<10)
	var number [8]byte
	for i := uint64(0); n > 0; i++ {
		binary.BigEndian.PutUint64(number[:], i)
		m, err := w.Write(number[:min(n, 8)])
		if err != nil {
			os.Exit(124)
		}
		n -= int64(m)
	}
	_ = w.Flush()
	os.Exit(9)
}

// Counted reads the number of bytes from the file of "count".
func Counted(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("count file has %d bytes", len(b))
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// childFlood writes n bytes of x to stdout.
func childFlood(args []string) {
	n, _ := strconv.ParseInt(args[0], 10, 64)
	block := bytes.Repeat([]byte("x"), 32<<10)
	for n > 0 {
		m, err := os.Stdout.Write(block[:min(n, int64(len(block)))])
		if err != nil {
			os.Exit(124)
		}
		n -= int64(m)
	}
}

// childForeground has a job in the foreground of its terminal that ends, prints the job's
// process id, and does not take the terminal back.
func childForeground([]string) {
	self, _ := os.Executable()
	command := exec.Command(self, "0")
	command.Env = append(os.Environ(), childVariable+"=exit")
	command.SysProcAttr = &syscall.SysProcAttr{Foreground: true, Ctty: 0}
	_ = command.Run()
	fmt.Println(command.Process.Pid)
	time.Sleep(time.Hour)
}

// childHold starts a copy of itself that keeps some streams and lives for an
// hour, prints the copy's process id, and exits with code 7. Its arguments:
// "setsid" to leave the session, "streams" to keep stdout and stderr, "hup" to
// ignore SIGHUP, "term" to ignore SIGTERM.
func childHold(args []string) {
	has := func(word string) bool {
		for _, a := range args {
			if a == word {
				return true
			}
		}
		return false
	}
	if has("held") {
		if has("hup") {
			signal.Ignore(syscall.SIGHUP)
		}
		if has("term") {
			signal.Ignore(syscall.SIGTERM)
		}
		fmt.Fprintln(os.NewFile(3, "ready"), "ready")
		time.Sleep(time.Hour)
	}
	self, _ := os.Executable()
	ready, theirs, _ := os.Pipe()
	command := exec.Command(self, append(args, "held")...)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: has("setsid")}
	command.ExtraFiles = []*os.File{theirs}
	if has("streams") {
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
	}
	if err := command.Start(); err != nil {
		os.Exit(125)
	}
	_, _ = bufio.NewReader(ready).ReadString('\n')
	fmt.Println(command.Process.Pid)
	os.Exit(7)
}

// childNumbers prints the numbers from 0 to n-1, a line each.
func childNumbers(args []string) {
	n, _ := strconv.Atoi(args[0])
	w := bufio.NewWriter(os.Stdout)
	for i := range n {
		fmt.Fprintln(w, i)
	}
	_ = w.Flush()
}

// childDrain prints "ready", waits for a file to exist, and then copies stdin
// to stdout.
func childDrain(args []string) {
	fmt.Println("ready")
	for {
		if _, err := os.Stat(args[0]); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_, _ = io.Copy(os.Stdout, os.Stdin)
}

// childCloseStdin closes stdin, says so, and idles.
func childCloseStdin([]string) {
	_ = os.Stdin.Close()
	fmt.Println("closed")
	time.Sleep(time.Hour)
}

// childUse uses the given MiB of memory and milliseconds of processor time.
func childUse(args []string) {
	mib, _ := strconv.Atoi(args[0])
	ms, _ := strconv.ParseInt(args[1], 10, 64)
	memory := make([]byte, mib<<20)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	for used := int64(-1); used < ms*1e6; {
		var usage syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
		used = usage.Utime.Nano() + usage.Stime.Nano()
	}
	fmt.Println(memory[4096])
}

// childSpin takes what processor time it gets in the given milliseconds.
func childSpin(args []string) {
	ms, _ := strconv.Atoi(args[0])
	for start := time.Now(); time.Since(start) < time.Duration(ms)*time.Millisecond; {
	}
}
