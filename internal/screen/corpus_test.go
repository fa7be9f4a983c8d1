package screen

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each recording of a real program gives the screen that tmux shows, cell by cell. The
// script scripts/screen-corpus makes them.
func TestCorpus(t *testing.T) {
	recordings, err := filepath.Glob("testdata/corpus/*.bytes")
	if err != nil || len(recordings) < 30 {
		t.Fatalf("%d recordings, %v", len(recordings), err)
	}
	for _, path := range recordings {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".bytes"), func(t *testing.T) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			wanted, ends := readPicture(t, strings.TrimSuffix(path, ".bytes")+".screen")
			s := New(wanted.rows, wanted.cols)
			s.Write(b)
			compare(t, s, wanted, ends)
		})
	}
}

// readPicture reads what tmux has said of a screen. It shows the attributes with the
// sequences that a program would use, which hold for the rows below, too. It does not show
// blanks that were never written behind the end of a row, even if they have a colour; so
// the ends are returned.
func readPicture(t *testing.T, path string) (picture *Screen, ends []int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rows, _ := bytes.Cut(b, []byte("\n"))
	var cols, lines, x, y, visible, alternate int
	if _, err := fmt.Sscan(string(head), &cols, &lines, &x, &y, &visible, &alternate); err != nil {
		t.Fatalf("%s: %q: %v", path, head, err)
	}
	s := New(lines, cols)
	if alternate > 0 {
		s.Write([]byte("\x1b[?1049h"))
	}
	s.Write([]byte("\x1b)0"))
	for i, row := range bytes.Split(bytes.TrimSuffix(rows, []byte("\n")), []byte("\n")) {
		fmt.Fprintf(writer{s}, "\x1b[%d;1H%s", i+1, row)
		if end := s.col; s.wrapping {
			ends = append(ends, end+1)
		} else {
			ends = append(ends, end)
		}
	}
	fmt.Fprintf(writer{s}, "\x1b[%d;%dH", y+1, x+1)
	if visible == 0 {
		s.Write([]byte("\x1b[?25l"))
	}
	if title := strings.SplitN(string(head), " ", 7)[6]; title != "" {
		fmt.Fprintf(writer{s}, "\x1b]2;%s\x1b\\", title)
	}
	return s, ends
}

type writer struct{ s *Screen }

func (w writer) Write(b []byte) (int, error) {
	w.s.Write(b)
	return len(b), nil
}

// compare compares what a person sees.
func compare(t *testing.T, got, wanted *Screen, ends []int) {
	t.Helper()
	for row := range wanted.rows {
		for col := range wanted.cols {
			if a, b := got.lines[row].at(col), wanted.lines[row].at(col); seen(a) != seen(b) && (col < ends[row] || a.char != ' ') {
				t.Errorf("row %d, column %d: %q %+v, wanted %q %+v\n%q\n%q", row, col, a.char, a, b.char, b,
					got.StyledRows()[row], wanted.StyledRows()[row])
				break
			}
		}
	}
	row, col, visible := got.Cursor()
	wantedRow, wantedCol, wantedVisible := wanted.Cursor()
	if row != wantedRow || col != wantedCol || visible != wantedVisible {
		t.Errorf("cursor at %d, %d, visible %v; wanted %d, %d, %v", row, col, visible, wantedRow, wantedCol, wantedVisible)
	}
	if got.Alternate() != wanted.Alternate() || got.Title() != wanted.Title() {
		t.Errorf("alternate %v, title %q; wanted %v, %q", got.Alternate(), got.Title(), wanted.Alternate(), wanted.Title())
	}
}

// seen returns a cell without what nobody sees.
func seen(c cell) cell {
	if c.width == 0 {
		return cell{}
	}
	return c
}
