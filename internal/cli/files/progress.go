package files

import (
	"fmt"
	"math"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"execserver/client"
	"execserver/internal/cli"
)

// meter shows the progress of a copy in one line of a terminal. A nil meter shows nothing.
type meter struct {
	file  *os.File
	width int
	shown bool
	drawn time.Time
	rate  float64 // bytes per second, of the last seconds
	bytes int64   // when it was computed
	at    time.Time
}

// newMeter returns nil if file is not a terminal.
func newMeter(file *os.File) *meter {
	width, ok := cli.OnTerminal(file)
	if !ok {
		return nil
	}
	return &meter{file: file, width: width, at: time.Now()}
}

const (
	meterPause = 200 * time.Millisecond // between two lines
	rateTime   = 3 * time.Second        // how long a rate counts, about
)

// show replaces the line. done counts the sources before the current one.
func (m *meter) show(done *copyReport, p client.CopyProgress) {
	if m == nil || time.Since(m.drawn) < meterPause {
		return
	}
	m.drawn = time.Now()
	m.measure(done.Bytes + p.Bytes)
	line := fmt.Sprintf("%s, %s", countFiles(done.Files+p.Files), cli.FormatSize(done.Bytes+p.Bytes))
	if p.Complete && p.TotalBytes > p.Bytes {
		line += " of " + cli.FormatSize(done.Bytes+p.TotalBytes)
	}
	line += ", " + cli.FormatSize(int64(m.rate)) + "/s"
	if p.Complete && m.rate > 0 {
		line += ", " + left(float64(p.TotalBytes-p.Bytes)/m.rate)
	}
	line += "  " + cli.Printable(p.Name)
	if utf8.RuneCountInString(line) >= m.width {
		line = string([]rune(line)[:m.width-1])
	}
	fmt.Fprint(m.file, "\r"+line+"\x1b[K")
	m.shown = true
}

// measure updates the rate.
func (m *meter) measure(bytes int64) {
	now := time.Now()
	span := now.Sub(m.at).Seconds()
	if span <= 0 {
		return
	}
	rate := float64(bytes-m.bytes) / span
	if m.rate == 0 {
		m.rate = rate
	} else {
		m.rate += (rate - m.rate) * (1 - math.Exp(-span/rateTime.Seconds()))
	}
	m.bytes, m.at = bytes, now
}

// clear removes the line before other output.
func (m *meter) clear() {
	if m != nil && m.shown {
		fmt.Fprint(m.file, "\r\x1b[K")
		m.shown = false
	}
}

// finish replaces the line by a summary.
func (m *meter) finish(r *copyReport, took time.Duration) {
	if m == nil {
		return
	}
	m.clear()
	line := fmt.Sprintf("%s, %s in %.1f s", countFiles(r.Files), cli.FormatSize(r.Bytes), took.Seconds())
	for _, count := range []struct {
		n    int64
		what string
	}{{r.Unchanged, "unchanged"}, {r.Replaced, "replaced"}, {r.LeftOut, "left out"}, {r.Failed, "failed"}} {
		if count.n > 0 {
			line += fmt.Sprintf(", %s %s", grouped(count.n), count.what)
		}
	}
	fmt.Fprintln(m.file, line)
}

func countFiles(n int64) string {
	if n == 1 {
		return "1 file"
	}
	return grouped(n) + " files"
}

// grouped returns a number with a comma after every third digit.
func grouped(n int64) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// left formats the remaining time.
func left(seconds float64) string {
	s := int64(min(max(seconds, 0), 359999))
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d left", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d left", s/60, s%60)
}
