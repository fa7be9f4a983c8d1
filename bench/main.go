//go:build linux

// Bench measures exec-servers: output, keystrokes, starts, files, memory, and how long a
// client waits while another one keeps the server busy. It starts any command that prints a
// ws:// URL on stdout. With two commands it alternates between them in one run and prints
// medians and the ratio. The same run measures the floors: the same work without a server.
//
//	go run ./bench 'bin/exec-server --listen ws://127.0.0.1:0' 'codex exec-server --listen ws://127.0.0.1:0'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	if err := dispatch(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// dispatch runs the program as its arguments say: as a process that a case needs next to the
// server, or as the measurement itself.
func dispatch(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "relay":
		return runRelay()
	case len(args) == 4 && args[0] == "neighbour":
		return runNeighbour(args[1], args[2], args[3])
	}
	// With a second processor, the idle threads of the runtime would look for work and
	// slow the server down.
	runtime.GOMAXPROCS(1)
	rounds := flag.Int("rounds", 5, "how often each case is measured; medians are printed")
	only := flag.String("cases", ".", "measure the cases that match this regular `expression`")
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) // no server may stay
	defer stop()
	printHeader(commands)
	for _, c := range append(cases, tailsCases()...) {
		if pattern.MatchString(c.name) {
			measure(ctx, c, commands, *rounds, *timeout)
		}
	}
	return ctx.Err()
}

// benchCase is one measurement. run measures a server that was started for it alone, with a
// client; floor does the same work without a server.
type benchCase struct {
	name  string
	run   func(m *sample, s *server, c *client)
	floor func(m *sample)
}

// sample is what one round of a case measures.
type sample struct {
	ctx     context.Context // of the round
	err     error           // the first failure
	figures []figure
}

// figure is one value, or those of all rounds: of the floor, and then of each command.
type figure struct {
	name, unit string
	value      float64
	columns    [3][]float64
}

func (m *sample) add(name, unit string, value float64) {
	m.figures = append(m.figures, figure{name: name, unit: unit, value: value})
}

// check notes a failure, and reports whether there is none.
func (m *sample) check(err error) bool {
	if m.err == nil {
		m.err = err
	}
	return m.err == nil
}

// measure runs a case in rounds, in which the servers and the floor take turns, and prints
// its rows.
func measure(ctx context.Context, c benchCase, commands []string, rounds int, timeout time.Duration) {
	var figures []figure
	once := func(column int, f func(*sample)) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		m := &sample{ctx: ctx}
		if f(m); m.err != nil { // the others are measured all the same
			fmt.Fprintf(os.Stderr, "bench: %s, %s: %v\n", c.name, columns(commands)[column], m.err)
			return
		}
		for _, v := range m.figures {
			i := slices.IndexFunc(figures, func(f figure) bool { return f.name == v.name })
			if i < 0 {
				i, figures = len(figures), append(figures, v)
			}
			figures[i].columns[column] = append(figures[i].columns[column], v.value)
		}
	}
	for round := 0; round < rounds && ctx.Err() == nil; round++ {
		if c.floor != nil {
			once(0, c.floor)
		}
		for i := range commands {
			i = (i + round) % len(commands)
			once(i+1, func(m *sample) {
				s, err := startServer(m.ctx, commands[i])
				if !m.check(err) {
					return
				}
				defer s.stop()
				client := s.connect(m.ctx)
				if c.run(m, s, client); client.err != nil {
					m.check(client.err)
				}
			})
		}
	}
	for _, f := range figures {
		f.print(len(commands))
	}
}

// columns returns the names of the columns of values.
func columns(commands []string) []string {
	names := []string{"without a server"}
	for i, command := range commands {
		name := filepath.Base(strings.Fields(command + " .")[0])
		if slices.Contains(names, name) {
			name = fmt.Sprintf("%s (%d)", name, i+1)
		}
		names = append(names, name)
	}
	return names
}

// printHeader begins a table in Markdown.
func printHeader(commands []string) {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // for information only
	fmt.Printf("%d processors, Linux %s, %s\n\n", runtime.NumCPU(), strings.TrimSpace(string(kernel)), time.Now().Format(time.DateOnly))
	names := columns(commands)
	if len(commands) == 2 {
		names = append(names, "times better")
	}
	fmt.Printf("| | %s |\n| ---%s |\n", strings.Join(names, " | "), strings.Repeat(" | ---:", len(names)))
}

// print prints the row of a figure.
func (f *figure) print(commands int) {
	row := []string{f.name}
	for column := range commands + 1 {
		text := "–"
		if v, ok := f.of(column); ok {
			text = digits(v) + " " + f.unit
		}
		row = append(row, text)
	}
	if commands == 2 {
		row = append(row, f.times())
	}
	fmt.Printf("| %s |\n", strings.Join(row, " | "))
}

// of returns the median of a column, or the worst of all rounds where that is measured, and
// false if nothing was measured.
func (f *figure) of(column int) (float64, bool) {
	v := slices.Sorted(slices.Values(f.columns[column]))
	switch {
	case len(v) == 0:
		return 0, false
	case strings.HasSuffix(f.name, "worst"):
		return v[len(v)-1], true
	}
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2, true
}

// times returns how many times better the first command is than the second. More is better
// for rates alone.
func (f *figure) times() string {
	a, ok1 := f.of(1)
	b, ok2 := f.of(2)
	if !strings.HasSuffix(f.unit, "/s") {
		a, b = b, a
	}
	if !ok1 || !ok2 || b == 0 {
		return "–"
	}
	return digits(a / b)
}

// digits formats v with three significant digits, or as a whole number.
func digits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
