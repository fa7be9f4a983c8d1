package screen

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// differs tells what two screens do not have in common, or returns "".
func differs(a, b *Screen) string {
	others := [2][]*line{a.ordinary, b.ordinary}
	for i, lines := range [][2][]*line{{a.lines, b.lines}, others} {
		if len(lines[0]) != len(lines[1]) {
			return fmt.Sprintf("screen %d has %d and %d lines", i, len(lines[0]), len(lines[1]))
		}
		for row := range lines[0] {
			for col := range a.cols {
				if x, y := lines[0][row].at(col), lines[1][row].at(col); seen(x) != seen(y) {
					return fmt.Sprintf("screen %d, row %d, column %d: %+v and %+v", i, row, col, x, y)
				}
			}
		}
	}
	for _, part := range []struct {
		name string
		x, y any
	}{
		{"cursor", a.cursor, b.cursor},
		{"saved", a.saved, b.saved},
		{"saved on the other screen", a.savedOther, b.savedOther},
		{"rest", fmt.Sprint(a.wrapping, a.top, a.bottom, a.modes, a.shape), fmt.Sprint(b.wrapping, b.top, b.bottom, b.modes, b.shape)},
		{"tabs", fmt.Sprint(a.tabs), fmt.Sprint(b.tabs)},
		{"title", a.title, b.title},
		{
			"parser", fmt.Sprint(a.parser.state, a.parser.params, a.parser.private, a.parser.intermediates, string(a.parser.text), a.parser.pending),
			fmt.Sprint(b.parser.state, b.parser.params, b.parser.private, b.parser.intermediates, string(b.parser.text), b.parser.pending),
		},
	} {
		if part.x != part.y && (a.parser.state != ground || part.name != "parser") {
			return fmt.Sprintf("%s: %+v and %+v", part.name, part.x, part.y)
		}
	}
	return ""
}

// check gives a program's output to screens in different ways, which must agree.
func check(t *testing.T, rows, cols int, b []byte, cut int) {
	t.Helper()
	whole := New(rows, cols)
	whole.Write(b)
	single := New(rows, cols)
	for i := range b {
		single.Write(b[i : i+1])
	}
	if d := differs(whole, single); d != "" {
		t.Fatalf("byte by byte: %s", d)
	}
	first := New(rows, cols)
	first.Write(b[:cut])
	late := New(rows, cols)
	late.Write(first.Drawing())
	if d := differs(first, late); d != "" {
		t.Fatalf("drawn after %d bytes: %s\n%q", cut, d, first.Drawing())
	}
	late.last = first.last // which a drawing does not tell
	late.Write(b[cut:])
	if d := differs(whole, late); d != "" {
		t.Fatalf("continued after %d bytes: %s\n%q", cut, d, first.Drawing())
	}
	whole.Resize(rows/2+1, cols+3)
	whole.Rows()
	whole.Write(b)
	whole.Resize(rows+2, cols/2+1)
	whole.Gap()
	whole.Write(b)
	whole.StyledRows()
	if row, col, _ := whole.Cursor(); row >= whole.rows || col >= whole.cols {
		t.Fatalf("the cursor is at %d, %d of %d, %d", row, col, whole.rows, whole.cols)
	}
}

func FuzzScreen(f *testing.F) {
	paths, err := filepath.Glob("testdata/corpus/*.bytes")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 4<<10)], byte(24), byte(80), uint16(1000))
	}
	f.Add([]byte("\x1b[?6h\x1b[2;4r\x1b7\x1b[?1049h\x1b[42m\x1b[2J漢字\x1b[H\x1b[5@\x1b#8\x1b[1;1H\x1b[K\x1b]2;t"), byte(5), byte(7), uint16(20))
	f.Fuzz(func(t *testing.T, b []byte, rows, cols byte, cut uint16) {
		if rows > 60 || cols > 120 || len(b) > 16<<10 {
			t.Skip("too large to be quick")
		}
		check(t, max(int(rows), 1), max(int(cols), 1), b, int(cut)%(len(b)+1))
	})
}

// A late watcher gets the state of every recording, wherever it comes.
func TestDrawingOfCorpus(t *testing.T) {
	paths, err := filepath.Glob("testdata/corpus/*.bytes")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			check(t, 24, 80, b, len(b)*i/6)
		}
	}
}

// worst is what takes most time or memory for each byte, as far as anybody knows.
var worst = map[string]string{
	"text":        "a",
	"lines":       "\n",
	"fill":        "\x1b#8",
	"clear":       "\x1b[J",
	"clear all":   "\x1b[41m\x1b[2J",
	"scroll":      "\x1b[65535S",
	"insert":      "\x1b[L",
	"shift":       "\x1b[@",
	"delete":      "\x1b[P",
	"split":       "漢\b",
	"repeat":      "a\x1b[65535b\r",
	"insert text": "\ra",
	"insert many": "\r\x1b[999b",
	"insert wide": "漢\r\x1b[999b",
	"marks":       "\u0301",
	"alternate":   "\x1b[?47h\x1b[?47l",
	"tabs":        "\x1b[3g\x1b[65535I\x1b[65535Z",
	"title":       "\x1b]2;" + strings.Repeat("x", 2000) + "\a",
	"no title":    "\x1b]2;x",
	"parameters":  "\x1b[" + strings.Repeat("1;", 100) + "m",
	"fill, shift": "\x1b#8\x1b[@",
	"reset":       "\x1bc",
}

// writeWorst writes size bytes of a unit of worst to a new screen.
func writeWorst(name string, rows, cols, size int) *Screen {
	s := New(rows, cols)
	if strings.HasPrefix(name, "insert ") {
		s.Write([]byte("\x1b[4hxx"))
	}
	s.Write(bytes.Repeat([]byte(worst[name]), size/len(worst[name])+1))
	return s
}

var worstShapes = [][2]int{{24, 80}, {MaxRows, MaxCells / MaxRows}, {MaxCells / MaxCols, MaxCols}}

// The worst that a program can write costs bounded memory, also on the largest screens.
func TestWorstInput(t *testing.T) {
	for name := range worst {
		for _, shape := range worstShapes {
			t.Run(fmt.Sprintf("%s/%d rows", name, shape[0]), func(t *testing.T) {
				t.Parallel()
				s := writeWorst(name, shape[0], shape[1], 16<<10)
				if most := 4*MaxCells*80 + 1<<20; s.Memory() > most || len(s.Drawing()) > most {
					t.Errorf("%d bytes, and %d of the drawing", s.Memory(), len(s.Drawing()))
				}
			})
		}
	}
}

// BenchmarkWorstInput writes more of it, whose memory and time are bounded. The bound of the
// time is far above what it takes.
func BenchmarkWorstInput(b *testing.B) {
	for name := range worst {
		for _, shape := range worstShapes {
			size := 1 << 20
			if shape[0]*shape[1] > 24*80 {
				size /= 4
			}
			b.Run(fmt.Sprintf("%s/%d rows", name, shape[0]), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					s := writeWorst(name, shape[0], shape[1], size)
					if most := 4*MaxCells*80 + 1<<20; s.Memory() > most || len(s.Drawing()) > most {
						b.Errorf("%d bytes, and %d of the drawing", s.Memory(), len(s.Drawing()))
					}
				}
				if each := b.Elapsed() / time.Duration(b.N); each > 5*time.Second {
					b.Errorf("%d bytes took %v", size, each)
				}
			})
		}
	}
}

// A repeated character is inserted as if the program had written it so often.
func TestRepeatInserts(t *testing.T) {
	for _, row := range []string{"", "abcdef", "漢字漢字漢", "a漢b字c漢d", "\x1b[41mab\x1b[Kcd"} {
		for _, last := range []string{"x", "漢", "x\u0301", "\x1b(0q"} {
			for col := range 10 {
				for n := 1; n < 12; n++ {
					begin := fmt.Sprintf("%s\x1b[1;1H\x1b[32m\x1b[4h%s\x1b[1;%dH", row, last, col+1)
					repeated, written := New(2, 10), New(2, 10)
					repeated.Write(fmt.Appendf(nil, "%s\x1b[%db", begin, n))
					// What does not fit on the line is not repeated.
					count := min(n, (10-col)/width(repeated.last))
					charset := strings.TrimSuffix(last, "q")
					if last != charset {
						charset = "\x1b(0"
					} else {
						charset = ""
					}
					written.Write([]byte(begin + charset + strings.Repeat(string([]rune(strings.ReplaceAll(last, "\x1b(0", ""))[:1]), count)))
					if d := differs(repeated, written); d != "" {
						t.Fatalf("%q repeated %d times in column %d of %q: %s", last, n, col, row, d)
					}
				}
			}
		}
	}
}

func TestGap(t *testing.T) {
	s := New(3, 20)
	s.Write([]byte("before\r\n\x1b[3"))
	s.Gap()
	s.Write([]byte("\xa2\x8a after"))
	if got := s.Rows(); !slices.Equal(got, []string{"before", " after", ""}) {
		t.Errorf("%q", got)
	}
}

func TestResize(t *testing.T) {
	s := New(4, 10)
	s.Write([]byte("1\r\n2\r\n3\r\n4 long\x1b[41m\x1b[K"))
	s.Resize(2, 4)
	if got := s.Rows(); !slices.Equal(got, []string{"3", "4 lo"}) {
		t.Errorf("%q", got)
	}
	s.Resize(3, 6)
	s.Write([]byte("\x1b[m\r\nnew"))
	if got := s.StyledRows(); !slices.Equal(got, []string{"3", "4 lo", "new"}) {
		t.Errorf("%q", got)
	}
}

// What is hostile in a title or hidden by its attribute shows nowhere.
func TestHidden(t *testing.T) {
	s := New(2, 30)
	s.Write([]byte("\x1b]2;ti\u202etle\x1b\\\x1b[8msecret\x1b[m shown"))
	if got := s.Rows()[0]; got != "       shown" {
		t.Errorf("%q", got)
	}
	if s.Title() != "title" {
		t.Errorf("%q", s.Title())
	}
}
