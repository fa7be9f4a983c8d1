package picture_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"execserver/internal/picture"
)

// element is a part of a picture.
type element struct {
	name, style, text string
}

// elements parses a picture, which must be valid XML of known elements.
func elements(t *testing.T, svg string) (found []element) {
	t.Helper()
	known := map[string]bool{"svg": true, "title": true, "style": true, "rect": true, "circle": true, "text": true}
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if !known[token.Name.Local] {
				t.Errorf("the picture has an element %q", token.Name.Local)
			}
			e := element{name: token.Name.Local}
			for _, attribute := range token.Attr {
				if strings.HasPrefix(attribute.Name.Local, "on") || attribute.Name.Local == "href" {
					t.Errorf("the picture has an attribute %q", attribute.Name.Local)
				}
				if attribute.Name.Local == "style" || attribute.Name.Local == "fill" {
					e.style = attribute.Value
				}
			}
			found = append(found, e)
		case xml.CharData:
			if text := strings.Trim(string(token), "\n"); text != "" {
				found[len(found)-1].text += text
			}
		}
	}
}

func styleOf(t *testing.T, svg, text string) string {
	t.Helper()
	for _, e := range elements(t, svg) {
		if e.name == "text" && e.text == text {
			return e.style
		}
	}
	t.Fatalf("the picture shows no %q:\n%s", text, svg)
	return ""
}

func TestStyles(t *testing.T) {
	for _, test := range []struct{ sequence, style string }{
		{"\x1b[31m", "fill: #ff7b72"},
		{"\x1b[1;92m", "fill: #56d364; font-weight: bold"},
		{"\x1b[38;5;196m", "fill: #ff0000"},
		{"\x1b[38;5;244m", "fill: #808080"},
		{"\x1b[38;2;1;2;3m", "fill: #010203"},
		{"\x1b[38:2:1:2:3m", "fill: #010203"},
		{"\x1b[2;3;4m", "opacity: 0.65; font-style: italic; text-decoration: underline"},
		{"\x1b[31;39m", ""},
		{"\x1b[31m\x1b[m", ""},
		{"\x1b[38;2;1;2m", ""},
		{"\x1b[38;5;999m", ""},
		{"\x1b[2J\x1b[?25l\x1b]0;a title\a\x1b]8;;http://x\x1b\\", ""},
	} {
		if got := styleOf(t, picture.SVG("t", "before "+test.sequence+"\nshown", 80), "shown"); got != test.style {
			t.Errorf("%q gives the style %q, want %q", test.sequence, got, test.style)
		}
	}
	reversed := elements(t, picture.SVG("t", "\x1b[7mshown", 80))
	if last := reversed[len(reversed)-1]; last.style != "fill: #0d1117" || reversed[len(reversed)-2].style != "#e6edf3" {
		t.Errorf("a reversed text is %+v on %+v", last, reversed[len(reversed)-2])
	}
}

// TestHostileText checks that what a program writes does not become markup.
func TestHostileText(t *testing.T) {
	for _, text := range []string{
		`</text><script>alert(1)</script>`, `"><image href="http://x"/>`, "]]>", "&amp;", "a\x00b\x08\xff\ufffe", "\x1b[", "\x1b]", "\x1b",
		"\x1b[38;2;\"/><script>m;x",
	} {
		svg := picture.SVG(text, text+"\n\x1b[31m"+text, 80)
		elements(t, svg)
	}
	if got := styleOf(t, picture.SVG("t", `<b> & "c"`, 80), `<b> & "c"`); got != "" {
		t.Errorf("plain text has the style %q", got)
	}
}

func TestLinesAreCut(t *testing.T) {
	styleOf(t, picture.SVG("t", "0123456789", 4), "0123")
}
