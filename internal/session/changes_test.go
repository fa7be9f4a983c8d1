package session

import (
	"slices"
	"testing"
)

// TestChangesOfThreeConnections has the changes of a session whose connection breaks twice, while
// the first change of all does not end.
func TestChangesOfThreeConnections(t *testing.T) {
	t.Parallel()
	var events []string
	begun := map[string]func(){}
	submit := func(c *Changes, name string) (done func()) {
		x := &Change{Drop: func() { events = append(events, "drop "+name) }}
		done = func() { c.Done(x) }
		x.Begin = func() {
			events = append(events, "begin "+name)
			begun[name] = done
		}
		c.Submit(x)
		return done
	}
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(events, want) {
			t.Errorf("%q, want %q", events, want)
		}
		events = nil
	}
	s := new(Session)
	first, second, third := new(Changes), new(Changes), new(Changes)
	s.Own(first)
	submit(first, "a")
	submit(first, "b")
	expect("begin a")
	first.Close()
	expect("drop b")
	s.Own(second)
	submit(second, "c")
	second.Close()
	expect("drop c")
	submit(second, "late")
	expect("drop late")
	s.Own(third)
	submit(third, "d")
	given := submit(third, "given up")
	submit(third, "e")
	given()
	expect()
	begun["a"]()
	begun["a"]() // has no effect
	expect("begin d")
	begun["d"]()
	expect("begin e")
	begun["e"]()
	submit(third, "f")
	expect("begin f")
}
