package ownership

import (
	"strings"
	"unicode/utf8"
)

// maxArgvBytes bounds how much of a command line is remembered, which may be two
// megabytes long.
const maxArgvBytes = 1 << 10

// ShortArgv copies the first maxArgvBytes of a command line.
func ShortArgv(argv []string) (short []string, truncated bool) {
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
