package sandbox

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// hiding returns an engine that hides a file.
func hiding(t *testing.T, secret string) *Engine {
	t.Helper()
	e := &Engine{probe: make(chan struct{}), mechanism: MechanismUser, log: slog.New(slog.DiscardHandler)}
	e.opts = Options{Mode: ModeAuto, StateDir: t.TempDir(), Secrets: func() []string { return []string{secret} }}
	e.state = newEngineState(&e.opts, e.log)
	e.ctx, e.stop = context.WithCancel(context.Background())
	close(e.probe)
	t.Cleanup(e.Close)
	return e
}

// TestHidesWhatIsOpen opens files, and then replaces, removes and renames what is at their paths.
func TestHidesWhatIsOpen(t *testing.T) {
	for _, test := range []struct {
		name, opens string
		then        func(secret string) error
		want        bool
	}{
		{"a secret", "secret", func(string) error { return nil }, true},
		{"a secret that is replaced", "secret", func(secret string) error { return os.Rename(secret+".new", secret) }, true},
		{"a secret that is removed", "secret", os.Remove, true},
		{"another file", "secret.new", func(string) error { return nil }, false},
		{"another file that becomes the secret", "secret.new", func(secret string) error { return os.Rename(secret+".new", secret) }, true},
		{"a file with the name of a removed one", "file (deleted)", func(string) error { return nil }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"secret", "secret.new", "file (deleted)"} {
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			secret := filepath.Join(dir, "secret")
			e := hiding(t, secret)
			f, err := os.Open(filepath.Join(dir, test.opens))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := test.then(secret); err != nil {
				t.Fatal(err)
			}
			if got := e.Hides(f); got != test.want {
				t.Errorf("hides: %t", got)
			}
		})
	}
}

// TestHidesWhatIsOpenElsewhere opens a secret at another mount of its directory. Then the secret is
// replaced, or the mount goes away.
func TestHidesWhatIsOpenElsewhere(t *testing.T) {
	if !testkit.InMountNamespace(t) {
		return
	}
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, elsewhere := filepath.Join(base, "dir"), filepath.Join(base, "elsewhere")
	secret := filepath.Join(dir, "secret")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir, 0o700))
	must(os.Mkdir(elsewhere, 0o700))
	must(os.WriteFile(secret, nil, 0o600))
	must(os.WriteFile(secret+".new", nil, 0o600))
	must(unix.Mount(dir, elsewhere, "", unix.MS_BIND, ""))
	e := hiding(t, secret)
	open := func() *os.File {
		t.Helper()
		f, err := os.Open(filepath.Join(elsewhere, "secret"))
		must(err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	replaced := open()
	must(os.Rename(secret+".new", secret))
	unmounted := open()
	if !e.Hides(unmounted) {
		t.Error("a secret can be read at another mount")
	}
	must(unix.Unmount(elsewhere, unix.MNT_DETACH))
	if !e.Hides(replaced) {
		t.Error("a replaced secret can be read at another mount")
	}
	if !e.Hides(unmounted) {
		t.Error("a secret can be read at a mount that goes away")
	}
}
