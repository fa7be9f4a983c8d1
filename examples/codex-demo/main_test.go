package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

func TestMain(m *testing.M) {
	initMachine()
	os.Exit(m.Run())
}

// TestDemo has the released Codex run a command, and looks for what the command prints where
// it must run. Nothing must be left behind.
func TestDemo(t *testing.T) {
	testkit.Codex(t)
	before := leftovers(t)
	var out bytes.Buffer
	if err := run([]string{"cat hello.txt; echo $((6 * 7)); hostname"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	host := boxName
	if strings.Contains(out.String(), "\nnote ") {
		name, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		host = name
	}
	if want := "on " + host + ":\n" + greeting + "42\n" + host + "\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("the demonstration does not end with %q:\n%s", want, &out)
	}
	if after := leftovers(t); len(after) > len(before) {
		t.Errorf("the demonstration leaves %q", after)
	}
}

// TestWithoutMachine looks at the process that takes the place of the other machine.
func TestWithoutMachine(t *testing.T) {
	testkit.Codex(t)
	var out bytes.Buffer
	root := t.TempDir() // without the directory in which a machine is built
	d := &demo{out: &out, root: root, project: filepath.Join(root, "project"), server: filepath.Join(root, "exec-server"), model: responses.Start(asPrompted)}
	defer d.close()
	if err := os.Mkdir(d.project, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.programs(context.Background()); err != nil {
		t.Fatal(err)
	}
	var err error
	if d.box, err = d.startBox(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "the box is an ordinary process") {
		t.Errorf("the demonstration does not say that the box is no other machine:\n%s", &out)
	}
	if err := os.Mkdir(filepath.Join(root, "codex"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.configure(); err != nil {
		t.Fatal(err)
	}
	if err := d.codexOnce(context.Background(), "cat hello.txt"); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), ":\n"+greeting) {
		t.Errorf("the command has not printed the greeting:\n%s", &out)
	}
}

// leftovers are the folders of demonstrations.
func leftovers(t *testing.T) []string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "exec-server", "demo-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}
