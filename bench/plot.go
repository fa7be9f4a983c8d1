//go:build linux

package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// plot writes the plots that the results allow: the ratio of two commands for every
// figure, and how cost grows with size.
func (r *results) plot(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	plots := map[string]string{
		"ratios.svg":      r.ratioPlot(),
		"processes.svg":   r.scalePlot("processes: ", "start to closed p50", "live processes", "µs, start to closed"),
		"connections.svg": r.scalePlot("connections: ", "start to closed p50", "connections", "µs, start to closed"),
		"output.svg":      r.scalePlot("output: ", "throughput", "bytes of output", "MB/s"),
	}
	for name, text := range plots {
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

const (
	ink   = "#333"
	faint = "#ccc"
)

var columnColors = map[int]string{floorColumn: "#999", 0: "#0072b2", 1: "#d55e00"}

type svg struct {
	strings.Builder
	width, height int
}

func (s *svg) text(x, y float64, anchor, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor, ink, html.EscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

func (s *svg) whole() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, s.width, s.height, s.String())
}

// ratioPlot draws a bar for every figure, on a logarithmic scale. To the right the first
// command is better.
func (r *results) ratioPlot() string {
	type bar struct {
		label string
		ratio float64
	}
	var bars []bar
	most := 1.0
	for _, f := range r.Figures {
		if strings.Contains(f.Case, ": ") { // belongs to a scale
			continue
		}
		if ratio, ok := f.ratio(); ok && ratio > 0 {
			bars = append(bars, bar{f.Case + ": " + f.Name, ratio})
			most = max(most, ratio, 1/ratio)
		}
	}
	if len(bars) == 0 {
		return ""
	}
	const left, width, row = 320.0, 420.0, 22.0
	decades := math.Ceil(math.Log10(most) + 0.01)
	x := func(ratio float64) float64 { return left + width/2*(1+math.Log10(ratio)/decades) }
	s := &svg{width: left + width + 60, height: int(row*float64(len(bars))) + 60}
	bottom := float64(s.height) - 30
	for d := -decades; d <= decades; d++ {
		s.line(x(math.Pow(10, d)), 30, x(math.Pow(10, d)), bottom, faint)
		s.text(x(math.Pow(10, d)), bottom+16, "middle", "×"+strconv.FormatFloat(math.Pow(10, d), 'g', 3, 64))
	}
	s.text(left+width/2, 18, "middle", "how many times better "+r.columnName(0)+" is than "+r.columnName(1))
	for i, b := range bars {
		y := 34 + row*float64(i)
		from, to := min(x(1), x(b.ratio)), max(x(1), x(b.ratio))
		color := columnColors[0]
		if b.ratio < 1 {
			color = columnColors[1]
		}
		fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="14" fill="%s"/>`+"\n", from, y, to-from, color)
		s.text(left-8, y+11, "end", b.label)
		s.text(to+4, y+11, "start", digits(b.ratio))
	}
	return s.whole()
}

// scalePlot draws one figure of the cases that begin with prefix against the number
// behind the prefix. Both axes are logarithmic.
func (r *results) scalePlot(prefix, name, xLabel, yLabel string) string {
	type point struct{ x, y float64 }
	lines := map[int][]point{}
	minX, maxX, minY, maxY := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, f := range r.Figures {
		number, ok := strings.CutPrefix(f.Case, prefix)
		if !ok || f.Name != name {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			continue
		}
		for column := range r.Commands {
			if v, ok := f.of(column); ok && v > 0 {
				lines[column] = append(lines[column], point{n, v})
				minX, maxX, minY, maxY = min(minX, n), max(maxX, n), min(minY, v), max(maxY, v)
			}
		}
	}
	if len(lines) == 0 {
		return ""
	}
	const left, top, width, height = 70.0, 40.0, 520.0, 300.0
	lowX, highX := math.Floor(math.Log10(minX)), math.Max(math.Ceil(math.Log10(maxX)), math.Floor(math.Log10(minX))+1)
	lowY, highY := math.Floor(math.Log10(minY)), math.Max(math.Ceil(math.Log10(maxY)), math.Floor(math.Log10(minY))+1)
	x := func(v float64) float64 { return left + width*(math.Log10(v)-lowX)/(highX-lowX) }
	y := func(v float64) float64 { return top + height*(1-(math.Log10(v)-lowY)/(highY-lowY)) }
	s := &svg{width: left + width + 30, height: top + height + 60}
	for d := lowX; d <= highX; d++ {
		s.line(x(math.Pow(10, d)), top, x(math.Pow(10, d)), top+height, faint)
		s.text(x(math.Pow(10, d)), top+height+16, "middle", strconv.FormatFloat(math.Pow(10, d), 'g', 3, 64))
	}
	for d := lowY; d <= highY; d++ {
		s.line(left, y(math.Pow(10, d)), left+width, y(math.Pow(10, d)), faint)
		s.text(left-6, y(math.Pow(10, d))+4, "end", strconv.FormatFloat(math.Pow(10, d), 'g', 3, 64))
	}
	s.text(left+width/2, top+height+40, "middle", xLabel)
	s.text(left, 16, "start", yLabel)
	for column := range r.Commands {
		var path []string
		for _, p := range lines[column] {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.x), y(p.y)))
		}
		if len(path) == 0 {
			continue
		}
		fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), columnColors[column])
		last := lines[column][len(lines[column])-1]
		s.text(min(x(last.x), left+width-4), y(last.y)-6, "end", r.columnName(column))
	}
	return s.whole()
}
