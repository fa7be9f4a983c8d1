package client

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestEventLog compares an eventLog with a slice of all events, and of each reader the number
// of its next event.
func TestEventLog(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := eventLog{maxEvents: rapid.IntRange(1, 40).Draw(t, "maxEvents"), maxBytes: rapid.IntRange(1, 300).Draw(t, "maxBytes")}
		var all []Event
		var readers []*cursor
		unread := make(map[*cursor][]Event)
		add := func(c *cursor) {
			l.cursors = append(l.cursors, c)
			readers = append(readers, c)
		}
		out, errOut, whole := &cursor{next: 1, retains: true, stdout: true, exited: true}, &cursor{next: 1, retains: true, stderr: true}, &cursor{next: 1}
		add(out)
		add(errOut)
		add(whole)
		for range rapid.IntRange(0, 400).Draw(t, "steps") {
			var c *cursor // nil: another event
			if i := rapid.IntRange(0, len(readers)+2).Draw(t, "reader"); i < len(readers) {
				c = readers[i]
			}
			switch {
			case c == nil:
				e := Event{Kind: Output, Seq: uint64(len(all)) + 1, Stream: Stdout}
				switch rapid.IntRange(0, 8).Draw(t, "kind") {
				case 0:
					e.Kind, e.Stream = Exited, ""
				case 1, 2, 3, 4:
					e.Stream = Stderr
				}
				if e.Kind == Output {
					e.Data = make([]byte, rapid.IntRange(0, 60).Draw(t, "size"))
				}
				l.append(e)
				all = append(all, e)
				for _, c := range readers {
					if !c.retains || c.wants(e) {
						unread[c] = append(unread[c], e)
					}
				}
			case rapid.IntRange(0, 60).Draw(t, "remove") == 0:
				bytes := 0
				for _, e := range unread[c] {
					bytes += len(e.Data)
				}
				if got := l.remove(c); c.retains && got != bytes {
					t.Fatalf("%d bytes were unread, not %d", got, bytes)
				}
				readers = slices.DeleteFunc(readers, func(other *cursor) bool { return other == c })
				delete(unread, c)
			case len(unread[c]) == 0:
			case c.retains:
				if e, ok := l.find(c.next); !ok || e.Seq != unread[c][0].Seq || len(e.Data) != len(unread[c][0].Data) {
					t.Fatalf("the next event is %+v, %t, not %d", e, ok, unread[c][0].Seq)
				}
				l.consume(c)
				unread[c] = unread[c][1:]
			default:
				c.next = unread[c][0].Seq + 1
				unread[c] = unread[c][1:]
			}
			checkLog(t, &l, all, unread)
		}
	})
}

func checkLog(t *rapid.T, l *eventLog, all []Event, unread map[*cursor][]Event) {
	held := make(map[uint64]bool)
	retained, consumed := 0, uint64(len(all))
	for c, events := range unread {
		if len(events) > 0 {
			consumed = min(consumed, events[0].Seq-1)
		}
		for _, e := range events {
			if c.retains {
				retained += size(e)
				held[e.Seq] = true
			}
		}
	}
	bytes := 0
	for i := len(all) - 1; i >= max(0, len(all)-l.maxEvents); i-- {
		if bytes += len(all[i].Data); bytes > l.maxBytes {
			break
		}
		held[all[i].Seq] = true
	}
	if l.retained != retained || l.consumed(false) != consumed || l.last != uint64(len(all)) {
		t.Fatalf("%d bytes retained, not %d; consumed to %d, not %d", l.retained, retained, l.consumed(false), consumed)
	}
	var wrong []string
	for _, e := range all {
		if _, ok := l.find(e.Seq); ok != held[e.Seq] {
			wrong = append(wrong, fmt.Sprint(e.Seq, " held: ", ok))
		}
	}
	if wrong != nil || len(l.events) > len(held)+max(16, len(held)+1) {
		t.Fatalf("%v; %d places for %d events", wrong, len(l.events), len(held))
	}
}
