//go:build linux && faults

package faults

import (
	"maps"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/fault"
	"execserver/internal/ownership"
	"execserver/internal/testkit"
)

// uses is the number of calls at a place that fail, each in its own attempt.
// EXEC_SERVER_TEST_USES=1 makes the walk short: only the first call at each place fails,
// with two errnos.
const uses = 4

// lateness is the delay of a late call.
const lateness = 40 * time.Millisecond

// walk runs all scenarios. In each it makes the first, second, third… call at every place
// fail with every errno that is possible there, then makes a few calls in a row fail, and
// then delays a call. The places are those that the scenario passes, with and without a
// fault.
func walk(t *testing.T, owner *ownership.Ownership, group string) {
	d := newDriver(t, owner, group)
	most := int(testkit.Number(t, "EXEC_SERVER_TEST_USES", uses))
	for range 3 { // what is made once is made here
		for _, s := range scenarios {
			s.run(d, func() {})
			d.clean()
		}
	}
	if err := d.settle(); err != nil {
		t.Fatal(err)
	}
	d.explain()
	for _, s := range scenarios {
		begun := time.Now()
		attempts, hits := d.attempts, len(d.hits)
		d.walk(s, most)
		t.Logf("%-12s %5d attempts, %3d new places, %v", s.name, d.attempts-attempts, len(d.hits)-hits, time.Since(begun).Round(time.Millisecond))
	}
	t.Logf("%d attempts; %d places were reached, %d of them failed or were late", d.attempts, len(d.places), len(d.hits))
	missed := maps.Clone(d.places)
	for place := range d.hits {
		delete(missed, place)
	}
	if len(missed) > 0 {
		t.Logf("never failed: %s", strings.Join(slices.Sorted(maps.Keys(missed)), ", "))
	}
}

// walk runs one scenario.
func (d *driver) walk(s scenario, most int) {
	known := make(map[string]bool)
	var queue []string
	add := func(r fault.Report) {
		for _, place := range r.Places {
			if !known[place] {
				known[place] = true
				queue = append(queue, place)
			}
		}
	}
	first, _ := d.attempt(s, fault.Plan{})
	add(first)
	for len(queue) > 0 && d.ctx.Err() == nil {
		place := queue[0]
		queue = queue[1:]
		errnos := fault.Errnos(place)
		if most == 1 {
			errnos = errnos[:min(2, len(errnos))]
		}
		for _, errno := range errnos {
			for n := 1; n <= most; n++ {
				r, hit := d.attempt(s, fault.Plan{Place: place, N: n, Err: errno})
				add(r)
				if !hit {
					break
				}
			}
			if most == 1 || errno == syscall.EIO && strings.HasPrefix(place, "read output ") {
				continue // two of these in a row are the end of a terminal
			}
			times := 4
			if errno == syscall.ENOSYS {
				times = math.MaxInt32 // a kernel that does not have it now will not have it later
			}
			r, _ := d.attempt(s, fault.Plan{Place: place, N: 1, Times: times, Err: errno})
			add(r)
		}
		for n := 1; n <= min(most-1, 2); n++ {
			r, hit := d.attempt(s, fault.Plan{Place: place, N: n, Delay: lateness})
			add(r)
			if !hit {
				break
			}
		}
	}
}
