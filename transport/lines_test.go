//go:build unix

package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"execserver/transport"
)

func lines(r io.Reader, limit int64) transport.Conn {
	return transport.NewLines("lines", r, io.Discard, func() error { return nil }, limit)
}

func TestLines(t *testing.T) {
	const limit = 20
	refused := func(size int) string {
		return fmt.Sprintf("message of %d bytes exceeds the limit of %d bytes", size, limit)
	}
	exact := strings.Repeat("x", limit)
	for _, test := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"\n", nil},
		{"\r\n\n \n\t\r\n\r\n  ", nil},
		{"a\nb\n", []string{"a", "b"}},
		{"a\nb", []string{"a", "b"}},
		{"a\r\nb\r\n", []string{"a", "b"}},
		{"a\r\nb\r", []string{"a", "b\r"}},
		{"\n\na\n\n\nb\n\n", []string{"a", "b"}},
		{" a \n", []string{" a "}},
		{"a\rb\n", []string{"a\rb"}},
		{"\xff\xfe\n\xed\xa0\x80\n", []string{"\xff\xfe", "\xed\xa0\x80"}},
		{"\x00\n", []string{"\x00"}},
		{exact + "\n" + exact + "\r\n" + exact, []string{exact, exact, exact}},
		{exact + "y\nz\n", []string{refused(21), "z"}},
		{exact + "y\r\nz\n", []string{refused(21), "z"}},
		{exact + "yy\nz\n", []string{refused(22), "z"}},
		{exact + "yyy\nz\n", []string{refused(23), "z"}},
		{exact + "\r\r\nz\n", []string{refused(21), "z"}},
		{exact + "\rz\nz\n", []string{refused(22), "z"}},
		// A last line without its ending is refused, too, before the end.
		{exact + "y", []string{refused(21)}},
		{"a\n" + strings.Repeat(exact, 5000), []string{"a", refused(100_000)}},
		{strings.Repeat(exact, 5000) + "\nb", []string{refused(100_000), "b"}},
	} {
		for name, reader := range map[string]io.Reader{
			"whole":        strings.NewReader(test.in),
			"byte by byte": iotest.OneByteReader(strings.NewReader(test.in)),
			"with the end": iotest.DataErrReader(strings.NewReader(test.in)),
		} {
			l := lines(reader, limit)
			got, err := readAll(l)
			if !slices.Equal(got, test.want) || err != io.EOF {
				t.Errorf("%.100q %s: %q, %v, want %q", test.in, name, got, err, test.want)
			}
			if _, err := l.Read(nil); err != io.EOF {
				t.Errorf("%.100q %s: after the end: %v", test.in, name, err)
			}
		}
	}
}

// TestBrokenLine does not take a line that was cut off for a message.
func TestBrokenLine(t *testing.T) {
	broken := errors.New("broken")
	l := lines(io.MultiReader(strings.NewReader("a\n{\"cut\":"), iotest.ErrReader(broken)), 0)
	got, err := readAll(l)
	if !slices.Equal(got, []string{"a"}) || !errors.Is(err, broken) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOneWritePerLine(t *testing.T) {
	var writes []string
	w := writerFunc(func(b []byte) (int, error) {
		writes = append(writes, string(b))
		return len(b), nil
	})
	l := transport.NewLines("", strings.NewReader(""), w, func() error { return nil }, 0)
	big := strings.Repeat("b", 2<<20)
	for _, msg := range []string{"a", "", big, "c"} {
		if err := l.Write([]byte(msg)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(writes, []string{"a\n", "\n", big + "\n", "c\n"}) {
		t.Errorf("%.100q", writes)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestStdioHalfClosed answers a peer that has nothing more to say.
func TestStdioHalfClosed(t *testing.T) {
	near, end := connectStdio(t, 0)
	if err := end.Send([]byte("last")); err != nil {
		t.Fatal(err)
	}
	_ = end.(*farLines).w.Close()
	if got, err := near.Read(nil); err != nil || string(got) != "last" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := near.Read(nil); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
	if err := near.Write([]byte("answer")); err != nil {
		t.Error(err)
	}
	if got, err := end.Receive(); err != nil || string(got) != "answer" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCloseError(t *testing.T) {
	calls, broken := 0, errors.New("broken")
	l := transport.NewLines("", strings.NewReader("a\n"), io.Discard, func() error { calls++; return broken }, 0)
	if err := l.Close(transport.Reason{}); !errors.Is(err, broken) {
		t.Errorf("Close: %v", err)
	}
	if err := l.Close(transport.Reason{}); err != nil || calls != 1 {
		t.Errorf("Close again: %v, %d calls", err, calls)
	}
}

// plainLines is what FuzzLines holds NewLines against.
func plainLines(data []byte, limit int) (messages []string) {
	for len(data) > 0 {
		line, rest, ended := bytes.Cut(data, []byte{'\n'})
		data = rest
		if ended {
			line = bytes.TrimSuffix(line, []byte{'\r'})
		}
		switch {
		case len(line) > limit:
			e := transport.TooLargeError{Limit: int64(limit), Size: int64(len(line))}
			messages = append(messages, e.Error())
		case len(bytes.TrimSpace(line)) > 0:
			messages = append(messages, string(line))
		}
	}
	return messages
}

// chunks reads at most a few bytes at a time.
type chunks struct {
	r     io.Reader
	sizes []byte
	next  int
}

func (c *chunks) Read(b []byte) (int, error) {
	size := 1 << 20
	if len(c.sizes) > 0 {
		size = 1 + int(c.sizes[c.next%len(c.sizes)])
		c.next++
	}
	return c.r.Read(b[:min(len(b), size)])
}

// FuzzLines puts pad bytes before the data, so that every boundary of the buffer
// can fall on every byte.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n \r\nc"), []byte{0}, uint16(0), uint16(5))
	f.Add([]byte("xx\r\nlonger than that\r\nyy"), []byte{1, 7}, uint16(16382), uint16(16384))
	f.Add([]byte("\r\n\r\n"), []byte{}, uint16(16383), uint16(16383))
	f.Add([]byte("\r\r\n\n\xff\x85\xa0\n"), []byte{255}, uint16(32767), uint16(40000))
	f.Fuzz(func(t *testing.T, data, sizes []byte, pad, limit uint16) {
		if limit == 0 {
			limit = 1
		}
		whole := append(bytes.Repeat([]byte{'x'}, int(pad)), data...)
		want := plainLines(whole, int(limit))
		got, err := readAll(lines(&chunks{r: bytes.NewReader(whole), sizes: sizes}, int64(limit)))
		if err != io.EOF || !slices.Equal(got, want) {
			t.Fatalf("%d bytes of padding, %q with the limit %d:\n%.200q, %v, want\n%.200q", pad, data, limit, got, err, want)
		}
	})
}
