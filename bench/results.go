//go:build linux

package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

type direction string

const (
	higher direction = "higher is better"
	lower  direction = "lower is better"
)

// floorColumn is the column of the floors.
const floorColumn = -1

// value is one measured figure.
type value struct {
	Value  float64
	Unit   string
	Better direction
	Worst  bool // the worst of several rounds counts, not the median
}

// sample holds the figures of one round of a case, by name.
type sample struct {
	names  []string
	values map[string]value
}

func (s *sample) add(name, unit string, better direction, v float64) {
	s.put(name, value{Value: v, Unit: unit, Better: better})
}

// addWorst adds the longest time that something took.
func (s *sample) addWorst(name, unit string, v float64) {
	s.put(name, value{Value: v, Unit: unit, Better: lower, Worst: true})
}

func (s *sample) put(name string, v value) {
	if s.values == nil {
		s.values = map[string]value{}
	}
	s.names = append(s.names, name)
	s.values[name] = v
}

// figure holds everything measured under one name. Samples has an entry for every column:
// the floor, then the commands.
type figure struct {
	Case, Name, Unit string
	Better           direction
	Worst            bool
	Samples          [][]float64
}

type results struct {
	Commands []string
	Figures  []*figure
	Failures []failure
}

type failure struct {
	Case, Column string
}

func newResults(commands []string) *results { return &results{Commands: commands} }

func (r *results) columnName(column int) string {
	switch {
	case column == floorColumn:
		return "floor"
	case len(r.Commands) == 2 && shortName(r.Commands[0]) == shortName(r.Commands[1]):
		return fmt.Sprintf("%s (%d)", shortName(r.Commands[column]), column+1)
	}
	return shortName(r.Commands[column])
}

func (r *results) add(name string, column int, s *sample) {
	for _, n := range s.names {
		v := s.values[n]
		i := slices.IndexFunc(r.Figures, func(f *figure) bool { return f.Case == name && f.Name == n })
		if i < 0 {
			i = len(r.Figures)
			r.Figures = append(r.Figures, &figure{
				Case: name, Name: n, Unit: v.Unit, Better: v.Better, Worst: v.Worst, Samples: make([][]float64, len(r.Commands)+1),
			})
		}
		f := r.Figures[i]
		f.Samples[column+1] = append(f.Samples[column+1], v.Value)
	}
}

func (r *results) fail(name string, column int) {
	r.Failures = append(r.Failures, failure{name, r.columnName(column)})
}

// of returns the median of a column, or the worst where that counts, and false if nothing
// was measured.
func (f *figure) of(column int) (float64, bool) {
	s := slices.Clone(f.Samples[column+1])
	if len(s) == 0 {
		return 0, false
	}
	slices.Sort(s)
	if f.Worst {
		return s[len(s)-1], true
	}
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2, true
}

// ratio returns how many times better the first command is than the second.
func (f *figure) ratio() (float64, bool) {
	if len(f.Samples) < 3 {
		return 0, false
	}
	a, ok1 := f.of(0)
	b, ok2 := f.of(1)
	if !ok1 || !ok2 {
		return 0, false
	}
	if f.Better == lower {
		a, b = b, a
	}
	return a / b, b != 0
}

// print writes a table of one case.
func (r *results) print(w io.Writer, name string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\n%s\tfloor", name)
	for i := range r.Commands {
		fmt.Fprintf(t, "\t%s", r.columnName(i))
	}
	if len(r.Commands) == 2 {
		fmt.Fprint(t, "\ttimes better")
	}
	fmt.Fprintln(t)
	for _, f := range r.Figures {
		if f.Case != name {
			continue
		}
		fmt.Fprintf(t, "  %s", f.Name)
		for column := floorColumn; column < len(r.Commands); column++ {
			fmt.Fprintf(t, "\t%s", f.text(column))
		}
		if _, ok := f.ratio(); ok {
			fmt.Fprintf(t, "\t%s", f.times())
		}
		fmt.Fprintln(t)
	}
	for i := range r.Commands {
		n := 0
		for _, failed := range r.Failures {
			if failed.Case == name && failed.Column == r.columnName(i) {
				n++
			}
		}
		if n > 0 {
			fmt.Fprintf(t, "  %s failed %d times\n", r.columnName(i), n)
		}
	}
	_ = t.Flush()
}

func (f *figure) text(column int) string {
	v, ok := f.of(column)
	if !ok {
		return "–"
	}
	if f.Unit == "" {
		return digits(v)
	}
	return digits(v) + " " + f.Unit
}

// digits formats v with three significant digits, or as a whole number.
func digits(v float64) string {
	switch abs := max(v, -v); {
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
