//go:build linux

// Bench measures exec-servers: output, keystrokes, starts, files, memory. It starts any
// command that prints a ws:// URL on stdout. With two commands it alternates between them
// in one run, and prints medians and the ratio. The same run measures the floors: the same
// work without a server.
//
//	go run ./bench 'bin/exec-server --listen ws://127.0.0.1:0' 'codex exec-server --listen ws://127.0.0.1:0'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

func main() {
	if err := dispatch(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// dispatch runs this program as its arguments say: as a process that a case needs beside
// the server, or as the measurement itself.
func dispatch(args []string) error {
	switch {
	case len(args) == 1 && args[0] == peerCommand:
		return runPeer()
	case len(args) == 4 && args[0] == neighbourCommand:
		return runNeighbour(args[1], args[2], args[3])
	}
	// With a second processor, the idle threads of the runtime would look for work and
	// slow the server down.
	runtime.GOMAXPROCS(1)
	return run()
}

func run() error {
	rounds := flag.Int("rounds", 5, "how often each case is measured; medians are printed")
	only := flag.String("cases", ".", "measure the cases that match this regular `expression`")
	scale := flag.Bool("scale", false, "also measure against the number of processes and connections and the size of output")
	plots := flag.String("plots", "", "write plots as SVG into this `directory`")
	document := flag.String("document", "", "write the tables into this `file`, as docs/performance.md has them")
	raw := flag.String("json", "", "write every measurement to this `file`")
	timeout := flag.Duration("timeout", 2*time.Minute, "give up a case after this time")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: bench [flags] COMMAND [COMMAND]\n\n"+
			"Each COMMAND starts an exec-server that prints its ws:// URL on stdout.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	commands := flag.Args()
	if len(commands) < 1 || len(commands) > 2 {
		flag.Usage()
		return errors.New("one or two commands are needed")
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-cases: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	b := &bench{timeout: *timeout, results: newResults(commands)}
	b.printMachine()
	selected := append(cases, tailsCases()...)
	if *scale {
		selected = append(selected[:len(selected):len(selected)], scaleCases()...)
	}
	for _, c := range selected {
		if pattern.MatchString(c.name) {
			if err := b.measure(ctx, c, commands, *rounds); err != nil {
				return err
			}
		}
	}
	if *raw != "" {
		if err := writeJSON(*raw, b.results); err != nil {
			return err
		}
	}
	if *document != "" {
		if err := b.results.document(*document); err != nil {
			return err
		}
	}
	if *plots != "" {
		return b.results.plot(*plots)
	}
	return nil
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// benchCase is one measurement. run measures a server that was started for it alone;
// floor does the same work without a server.
type benchCase struct {
	name  string
	run   func(context.Context, *server, *sample) error
	floor func(context.Context, *sample) error
}

type bench struct {
	timeout time.Duration
	results *results
}

// measure runs a case in rounds, in which the servers and the floor take turns.
func (b *bench) measure(ctx context.Context, c benchCase, commands []string, rounds int) error {
	for round := range rounds {
		if c.floor != nil {
			b.once(ctx, c.name, floorColumn, func(ctx context.Context, s *sample) error { return c.floor(ctx, s) })
		}
		for i := range commands {
			column := (i + round) % len(commands)
			b.once(ctx, c.name, column, func(ctx context.Context, s *sample) error {
				srv, err := startServer(ctx, commands[column])
				if err != nil {
					return err
				}
				defer srv.stop()
				return c.run(ctx, srv, s)
			})
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	b.results.print(os.Stdout, c.name)
	return nil
}

// once measures one sample. A failure is a result, too.
func (b *bench) once(ctx context.Context, name string, column int, f func(context.Context, *sample) error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	s := &sample{}
	if err := f(ctx, s); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s, %s: %v\n", name, b.results.columnName(column), err)
		b.results.fail(name, column)
		return
	}
	b.results.add(name, column, s)
}

func (b *bench) printMachine() {
	cpu := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, after, ok := strings.Cut(string(text), "model name"); ok {
			line, _, _ := strings.Cut(after, "\n")
			cpu = strings.TrimLeft(line, "\t :")
		}
		cpu = fmt.Sprintf("%d × %s", strings.Count(string(text), "processor\t"), cpu)
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // for information only
	fmt.Printf("%s, Linux %s, %s\n", cpu, strings.TrimSpace(string(kernel)), time.Now().Format(time.DateOnly))
	for i, command := range b.results.Commands {
		fmt.Printf("%s: %s\n", b.results.columnName(i), command)
	}
}

// shortName returns the name of a command for tables.
func shortName(command string) string {
	fields := strings.Fields(command)
	if len(fields) == 0 {
		return command
	}
	return filepath.Base(fields[0])
}
