//go:build linux

package slopes

import (
	"fmt"
	"os"
	"path/filepath"
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

// report compares the tenths, prints the table, and draws plots in SLOPES_OUT.
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
	dir := os.Getenv("SLOPES_OUT")
	if dir == "" {
		return
	}
	name := filepath.Join(dir, strings.NewReplacer(", ", "-", " ", "-").Replace(title))
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(name+".txt", []byte(table.String()), 0o644)
	}
	if err == nil {
		err = os.WriteFile(name+".svg", []byte(r.plot(title)), 0o644)
	}
	if err != nil {
		r.t.Error(err)
	}
}

// plot draws each measure over the number of commands.
func (r *run) plot(title string) string {
	const width, height, left, gap = 760.0, 110.0, 60.0, 40.0
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="sans-serif" font-size="12">`+"\n"+
		`<rect width="100%%" height="100%%" fill="white"/><text x="%.0f" y="20" font-size="15">%s</text>`+"\n",
		left+width+20, 30+float64(len(measures))*(height+gap), left, title)
	for i, m := range measures {
		top := 30 + gap/2 + float64(i)*(height+gap)
		most := 1.0
		for _, s := range r.samples {
			most = max(most, m.of(s))
		}
		most *= 1.1
		var points strings.Builder
		for _, s := range r.samples {
			fmt.Fprintf(&points, "%.1f,%.1f ", left+width*float64(s.commands)/float64(r.done), top+height*(1-m.of(s)/most))
		}
		fmt.Fprintf(&b, `<text x="%.0f" y="%.1f">%s</text><text x="4" y="%.1f">%.1f</text><text x="4" y="%.1f">0</text>`+
			`<path d="M%.0f %.1fv%.0fh%.0f" fill="none" stroke="#999"/><polyline points="%s" fill="none" stroke="#06c" stroke-width="1.5"/>`+"\n",
			left, top-4, m.name, top+10, most, top+height, left, top, height, width, points.String())
	}
	fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" text-anchor="end">%d commands</text></svg>`+"\n",
		left+width, 26+float64(len(measures))*(height+gap), r.done)
	return b.String()
}
