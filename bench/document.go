//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
)

// row is a figure of the document, and its goal: how many times better than the second
// command the first one should be. 0 means no goal.
type row struct {
	name         string
	inCase, what string
	goal         float64
}

var rows = []row{
	{"keystroke to echo, p50", "keystroke", "echo p50", 100},
	{"keystroke to echo, p99", "keystroke", "echo p99", 0},
	{"start to closed, p50", "start to closed", "start to closed p50", 25},
	{"start to closed in a sandbox, p50", "start in a sandbox", "start to closed p50", 0},
	{"starts, 64 in flight", "starts in flight", "starts, 64 in flight", 5},
	{"pipe output", "pipe output", "throughput", 4},
	{"pipe output, processor time per GB", "pipe output", "server CPU per GB", 4},
	{"terminal output", "terminal output", "throughput", 1},
	{"terminal output, processor time per GB", "terminal output", "server CPU per GB", 1},
	{"`seq 1 5000000`", "seq", "throughput", 1.4},
	{"`fs/readFile` of 8 MiB", "read file", "throughput", 4},
	{"`fs/writeFile` of 8 MiB", "write file", "throughput", 1.8},
	{"`fs/getMetadata`, 64 in flight", "metadata", "64 in flight", 2.5},
	{"idle memory", "memory", "idle", 3},
	{"memory of an idle connection", "memory", "per idle connection", 3},
	{"memory of a live process", "memory", "per live process", 3},
}

// The tables of the document stand between these lines.
const (
	tablesBegin = "<!-- What follows is written by bench -document. -->\n"
	tablesEnd   = "<!-- It ends here. -->\n"
)

// document replaces the tables in a document by those of the results.
func (r *results) document(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(text), tablesBegin)
	_, after, ok2 := strings.Cut(rest, tablesEnd)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no place for tables: it needs the lines %q and %q", path, tablesBegin, tablesEnd)
	}
	tables := "\n" + r.rowsTable() + "\n" + r.tailsTable() + "\n"
	return os.WriteFile(path, []byte(before+tablesBegin+tables+tablesEnd+after), 0o644)
}

func (r *results) figure(inCase, name string) *figure {
	for _, f := range r.Figures {
		if f.Case == inCase && f.Name == name {
			return f
		}
	}
	return nil
}

func (r *results) rowsTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | without a server | %s | %s | times better | goal |\n| --- | ---: | ---: | ---: | ---: | ---: |\n",
		r.columnName(0), r.columnName(len(r.Commands)-1))
	for _, row := range rows {
		f := r.figure(row.inCase, row.what)
		if f == nil {
			continue
		}
		goal := ""
		if row.goal > 0 {
			goal = fmt.Sprint(row.goal)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.name,
			f.text(floorColumn), f.text(0), f.text(len(r.Commands)-1), f.times(), goal)
	}
	return b.String()
}

// times returns the ratio as text.
func (f *figure) times() string {
	ratio, ok := f.ratio()
	if !ok {
		return "–"
	}
	return digits(ratio)
}

// tailsTable returns a table with a row for each neighbour, and times in milliseconds.
func (r *results) tailsTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| ms, beside | key p50 | key p99 | key worst | metadata p99 | metadata worst "+
		"| %[1]s: key p50 | %[1]s: key p99 | times better | a bare relay: key p99 |\n%[2]s|\n",
		r.columnName(len(r.Commands)-1), "| ---"+strings.Repeat(" | ---:", 9))
	last := len(r.Commands) - 1
	for _, n := range neighbours {
		inCase := tailsPrefix + n.name
		if r.figure(inCase, "echo p50") == nil {
			continue
		}
		in := func(name string, column int) string {
			us, ok := r.figure(inCase, name).of(column)
			if !ok {
				return "–"
			}
			return digits(us / 1e3)
		}
		cells := []string{
			n.name, in("echo p50", 0), in("echo p99", 0), in("echo worst", 0), in("metadata p99", 0), in("metadata worst", 0),
			in("echo p50", last), in("echo p99", last), r.figure(inCase, "echo p99").times(), in("bare relay p99", 0),
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}
