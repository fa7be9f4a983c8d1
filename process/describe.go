package process

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Description is what is remembered of how a process was started.
type Description struct {
	Pid           int
	Argv          []string // the first maxArgvBytes
	ArgvTruncated bool
	Dir           string
	TTY           bool
	Started       time.Time
}

// maxArgvBytes bounds how much of a command line is remembered, which may be two
// megabytes long.
const maxArgvBytes = 1 << 10

// describe describes a process that has no process id yet.
func describe(spec Spec) Description {
	d := Description{Dir: spec.Dir, TTY: spec.TTY, Started: time.Now()}
	d.Argv, d.ArgvTruncated = shorten(spec.Argv)
	return d
}

// shorten copies the first maxArgvBytes of a command line.
func shorten(argv []string) (short []string, truncated bool) {
	room := maxArgvBytes
	for _, arg := range argv {
		if room < 0 {
			return short, true
		}
		if len(arg) > room {
			for room > 0 && !utf8.RuneStart(arg[room]) {
				room--
			}
			return append(short, strings.Clone(arg[:room])), true
		}
		short = append(short, arg)
		room -= len(arg) + 1 // and so there are not too many of them either
	}
	return short, false
}

// Describe says how the process was started.
func (p *Process) Describe() Description { return p.about }
