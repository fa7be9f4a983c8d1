package files

import (
	"testing"

	"execserver/internal/cli"
)

func TestMeterNumbers(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 20_500_000: "20.5 MB", 123_400_000: "123 MB", 5_000_000_000: "5.0 GB",
	} {
		if got := cli.FormatSize(bytes); got != want {
			t.Errorf("%d bytes are shown as %q, want %q", bytes, got, want)
		}
	}
	for seconds, want := range map[float64]string{-1: "0:00 left", 7.9: "0:07 left", 125: "2:05 left", 3723: "1:02:03 left", 1e18: "99:59:59 left"} {
		if got := left(seconds); got != want {
			t.Errorf("%v seconds are shown as %q, want %q", seconds, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 files", 1: "1 file", 999: "999 files", 1000: "1,000 files", 1234567: "1,234,567 files"} {
		if got := countFiles(n); got != want {
			t.Errorf("%d files are shown as %q, want %q", n, got, want)
		}
	}
}

func TestParseCopyArg(t *testing.T) {
	for arg, want := range map[string]copyArg{
		"file": {path: "file"}, "./a:b": {path: "./a:b"}, "/a:b": {path: "/a:b"}, "dir/a:b": {path: "dir/a:b"},
		"box:file": {remote: true, name: "box", path: "file"}, ":file": {remote: true, path: "file"}, "box:": {remote: true, name: "box"},
		":": {remote: true}, "box:a:b": {remote: true, name: "box", path: "a:b"}, "a b:c": {path: "a b:c"},
	} {
		if got := parseCopyArg(arg); got != want {
			t.Errorf("%q is %+v, want %+v", arg, got, want)
		}
	}
}
