// Package picture draws the screen of a terminal as SVG. What programs have written is
// hostile: nothing of it becomes markup.
package picture

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// Colors and measures of the window, which has a background of its own: so it is readable on
// a light page and on a dark one.
const (
	foreground = "#e6edf3"
	background = "#0d1117"

	cellWidth  = 8.4 // of a character of 14 pixels, in the fonts below
	cellHeight = 19.0
	margin     = 16.0
	titleBar   = 34.0
)

const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.1[1]f %.1[2]f" width="%.0[1]f" height="%.0[2]f" role="img">
<title>%[3]s</title>
<style>
text { font: 14px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: ` + foreground + ` }
</style>
<rect x="0.5" y="0.5" width="%.1[4]f" height="%.1[5]f" rx="9" fill="` + background + `" stroke="#30363d"/>
<circle cx="20" cy="18" r="6" fill="#ff5f57"/><circle cx="40" cy="18" r="6" fill="#febc2e"/><circle cx="60" cy="18" r="6" fill="#28c840"/>
<text x="%.1[6]f" y="23" text-anchor="middle" style="fill: #8b949e">%[3]s</text>
`

// SVG returns the picture of a screen: lines of text with the escape sequences that set
// colors, as "tmux capture-pane -e" prints them. What is beyond the columns is left out, and
// other sequences have no effect. The title is also the text for who cannot see the picture.
func SVG(title, screen string, columns int) string {
	lines := strings.Split(strings.TrimRight(screen, "\n"), "\n")
	width := 2*margin + float64(columns)*cellWidth
	height := titleBar + margin + float64(len(lines))*cellHeight
	var b strings.Builder
	fmt.Fprintf(&b, head, width, height, escaped(title), width-1, height-1, width/2)
	r := reader{text: screen}
	for row := range lines {
		top := titleBar + float64(row)*cellHeight
		for _, run := range r.line(columns) {
			draw(&b, run, top)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// draw draws a run in the line that begins at the height top.
func draw(b *strings.Builder, r run, top float64) {
	front, back := r.style.foreground, r.style.background
	if r.style.reversed {
		front, back = orElse(back, background), orElse(front, foreground)
	}
	left, width := margin+float64(r.column)*cellWidth, float64(r.width())*cellWidth
	if back != "" {
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", left, top, width, cellHeight, back)
	}
	if strings.TrimSpace(r.text) == "" {
		return
	}
	var css []string
	for _, property := range []struct {
		set  bool
		text string
	}{
		{front != "", "fill: " + front},
		{r.style.bold, "font-weight: bold"},
		{r.style.dim, "opacity: 0.65"},
		{r.style.italic, "font-style: italic"},
		{r.style.underlined, "text-decoration: underline"},
	} {
		if property.set {
			css = append(css, property.text)
		}
	}
	attributes := ""
	if len(css) > 0 {
		attributes = fmt.Sprintf(` style="%s"`, strings.Join(css, "; "))
	}
	// textLength keeps the columns where the font has another width.
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" textLength="%.1f" xml:space="preserve"%s>%s</text>`+"\n",
		left, top+14, width, attributes, escaped(r.text))
}

func orElse(value, other string) string {
	if value == "" {
		return other
	}
	return value
}

// escaped is a text without markup, and without characters that XML does not know.
func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder does not fail
	return b.String()
}
