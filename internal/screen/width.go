package screen

import (
	"unicode"

	eastasian "golang.org/x/text/width"
)

// width returns how many columns a character takes. One that takes none belongs to the
// character before it.
func width(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case r >= 0x1160 && r < 0x1200: // vowels and finals of Korean syllables
		return 0
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	}
	switch eastasian.LookupRune(r).Kind() {
	case eastasian.EastAsianWide, eastasian.EastAsianFullwidth:
		return 2
	}
	return 1
}

// drawings are the characters of the second charset, from '_' on.
var drawings = []rune(" ◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")
