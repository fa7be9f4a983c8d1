package protocol

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestShorten(t *testing.T) {
	for _, n := range []int{0, 1023, 1024} {
		if text := strings.Repeat("x", n); Shorten(text) != text {
			t.Errorf("a text of %d bytes is cut", n)
		}
	}
	for shift := range 4 {
		text := "begins " + strings.Repeat("x", shift) + strings.Repeat("ü€𝄞", 10_000) + " (os error 2)"
		got := Shorten(text)
		head, rest, cut := strings.Cut(got, " [")
		_, tail, _ := strings.Cut(rest, " bytes left out] ")
		switch {
		case !cut || len(got) > 1100 || !utf8.ValidString(got):
			t.Errorf("%d bytes, %q", len(got), got)
		case !strings.HasPrefix(text, head) || !strings.HasSuffix(text, tail) || !strings.HasSuffix(tail, "(os error 2)"):
			t.Errorf("%q is not the beginning and the end", got)
		}
	}
	if got := Shorten(strings.Repeat("\x80", 5000)); len(got) > 1100 {
		t.Errorf("%d bytes of bytes that are not text", len(got))
	}
	if e := Errorf(CodeInternal, "%s", strings.Repeat("x", 5000)); len(e.Message) > 1100 {
		t.Errorf("an error of %d bytes", len(e.Message))
	}
}
