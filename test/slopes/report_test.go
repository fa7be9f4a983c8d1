//go:build linux

package slopes

import (
	"fmt"
	"strings"
)

// measures are the values that must not grow. Each may differ by a fraction and by an
// amount between the second and the last tenth of the run.
var measures = []struct {
	name   string
	of     func(sample) float64
	part   float64
	amount float64
}{
	{"descriptors", func(s sample) float64 { return float64(s.descriptors) }, 0, 16},
	{"control groups", func(s sample) float64 { return float64(s.groups) }, 0, 24},
	{"goroutines", func(s sample) float64 { return float64(s.goroutines) }, 0, 32},
	{"resident memory, MiB", func(s sample) float64 { return s.rss }, 0.15, 8},
	{"heap, MiB", func(s sample) float64 { return s.heap }, 0.15, 3},
	{"start, ms", func(s sample) float64 { return s.start }, 1, 10},
}

// steady is the number of commands after which the server has its full size: it keeps
// closed processes for a while, and the memory that it needed at the busiest moment.
const steady = 10_000

// report compares the tenths and prints the table.
func (r *run) report(title string) {
	n := len(r.samples)
	if n < 20 {
		r.t.Fatalf("%d samples are too few", n)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%s: %d commands\n%-22s %12s %12s\n", title, r.done, "", "second tenth", "last tenth")
	for _, m := range measures {
		mean := func(list []sample) (sum float64) {
			for _, s := range list {
				sum += m.of(s)
			}
			return sum / float64(len(list))
		}
		second, last := mean(r.samples[n/10:n/5]), mean(r.samples[n-n/10:])
		fmt.Fprintf(&table, "%-22s %12.1f %12.1f\n", m.name, second, last)
		if last > second*(1+m.part)+m.amount && (m.part == 0 || r.done >= steady) {
			r.t.Errorf("%s: %s grows from %.1f to %.1f", title, m.name, second, last)
		}
	}
	r.t.Logf("%s", table.String())
}
