//go:build unix

package process_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"execserver/internal/process"
)

// TestLongCommandLines starts commands whose arguments end at the bound of what the server
// retains.
func TestLongCommandLines(t *testing.T) {
	for _, size := range []int{1016, 1017, 1018, 1019, 1020, 1023, 1024, 1025} {
		for _, rest := range [][]string{nil, {""}, {"a"}, {"", ""}, {"é", "b"}} {
			argv := append([]string{"/bin/true", strings.Repeat("x", size-len("/bin/true")-1)}, rest...)
			p := start(t, process.Spec{Argv: argv}, nil)
			checkDescription(t, p.Describe(), argv)
			follow(t, p)
		}
	}
}

// checkDescription checks that argv is remembered up to 1,024 bytes.
func checkDescription(t *testing.T, about process.Description, argv []string) {
	t.Helper()
	size := 0
	for i, arg := range about.Argv {
		size += len(arg)
		last := i == len(about.Argv)-1
		if i >= len(argv) || arg != argv[i] && !(last && about.ArgvTruncated && strings.HasPrefix(argv[i], arg)) {
			t.Fatalf("argument %d of %q is remembered as %q", i, argv, arg)
		}
		if utf8.ValidString(argv[i]) && !utf8.ValidString(arg) {
			t.Fatalf("argument %d of %q is cut in a character: %q", i, argv, arg)
		}
	}
	if size > 1024 || len(about.Argv) > 1025 {
		t.Fatalf("%d arguments of %d bytes are remembered", len(about.Argv), size)
	}
	if !about.ArgvTruncated && !slices.Equal(about.Argv, argv) {
		t.Fatalf("%q is remembered as %q, which is not said to be truncated", argv, about.Argv)
	}
}

// FuzzStart starts /bin/true with any arguments, environment and directory: it runs to its
// end, or Start returns an *Error.
func FuzzStart(f *testing.F) {
	f.Add("a\nb", "A=b", "")
	f.Add(strings.Repeat("x", 1024-len("/bin/true")-1)+"\n", "", "")
	f.Add(strings.Repeat("\n", 2000), "=\nA\nA=\x00", "no/such")
	f.Add(strings.Repeat("é", 600), "\xff=\xfe", "\x00")
	f.Fuzz(func(t *testing.T, args, env, dir string) {
		argv := append([]string{"/bin/true"}, strings.Split(args, "\n")...)
		spec := process.Spec{Argv: argv, Arg0: &args, Dir: filepath.Join(t.TempDir(), dir), Env: make(map[string]string)}
		for entry := range strings.SplitSeq(env, "\n") {
			name, value, _ := strings.Cut(entry, "=")
			spec.Env["X"+name] = value // nothing that the loader or the C library knows
		}
		p, err := process.Start(spec, nil)
		if typed := (*process.Error)(nil); err != nil && !errors.As(err, &typed) {
			t.Fatalf("%q: %v is not an *Error", argv, err)
		}
		if err != nil {
			return
		}
		defer p.Release()
		checkDescription(t, p.Describe(), argv)
		if s := follow(t, p); s.Exit.ExitCode != 0 {
			t.Fatalf("%q exits with %d", argv, s.Exit.ExitCode)
		}
	})
}
