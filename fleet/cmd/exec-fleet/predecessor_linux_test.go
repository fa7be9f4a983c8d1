package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPredecessor has a machine end and another one begin on a host. What the second finds
// proves that the first has ended, or it finds nothing.
func TestPredecessor(t *testing.T) {
	t.Parallel()
	was := host{boot: "boot-1", hardware: "52:54:00:00:00:01"}
	urls := []string{"nats://gateway:4222"}
	for _, row := range []struct {
		what  string
		now   host
		urls  []string
		copy  bool // of the directory, as in a clone
		lives bool // the first machine
		want  string
	}{
		{"the same boot", was, urls, false, false, "instance-1"},
		{"it lives", was, urls, false, true, ""},
		{"another boot of the same host", host{"boot-2", was.hardware}, urls, false, false, "instance-1"},
		{"a clone that has booted", host{"boot-2", "52:54:00:00:00:02"}, urls, false, false, ""},
		{"a host without network cards", host{"boot-2", ""}, urls, false, false, ""},
		{"a copy on the same host", was, urls, true, false, ""},
		{"a copy beside one that lives", was, urls, true, true, ""},
		{"another fleet", was, []string{"nats://other:4222"}, false, false, ""},
	} {
		state := t.TempDir()
		first, err := findPredecessor(state, "box", urls, was)
		if err != nil {
			t.Fatal(err)
		}
		if first.instance != "" {
			t.Errorf("%s: the first machine finds %q", row.what, first.instance)
		}
		if err := first.write("instance-1"); err != nil {
			t.Fatal(err)
		}
		if row.copy {
			clone := filepath.Join(t.TempDir(), "clone")
			if out, err := exec.Command("cp", "-a", state, clone).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			state = clone
		}
		if !row.lives {
			_ = first.file.Close()
		}
		got := ""
		if second, err := findPredecessor(state, "box", row.urls, row.now); err == nil {
			got = second.instance
			_ = second.file.Close()
		}
		_ = first.file.Close() // again, maybe
		if got != row.want {
			t.Errorf("%s: it finds %q, want %q", row.what, got, row.want)
		}
	}
	// Other files are left alone.
	state := t.TempDir()
	first, err := findPredecessor(state, "box", urls, was)
	if err != nil {
		t.Fatal(err)
	}
	path := first.file.Name()
	_ = first.file.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := findPredecessor(state, "box", urls, was); err == nil {
		t.Error("it follows a link")
	}
}
