//go:build unix

package environments_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"execserver/client/environments"
)

// TestFind finds environments without opening them.
func TestFind(t *testing.T) {
	home := configure(t, "default = \"box\"\n"+
		entry(`id = "box"`, `url = " ws://127.0.0.1:1 "`, `auth_bearer_token = "a token"`, "connect_timeout_sec = 2")+
		entry(`id = "child"`, `program = "ssh"`, `args = ["box"]`, `cwd = "work"`, `env = { A = "b" }`, "initialize_timeout_sec = 3"))
	file := filepath.Join(home, "environments.toml")
	for _, name := range []string{"", "box"} {
		e, err := environments.Find(name)
		if err != nil || e.Name != "box" || e.Source != file || e.URL != "ws://127.0.0.1:1" || e.Token != "a token" ||
			e.Command != nil || e.Options.ConnectTimeout != 2*time.Second || e.Options.Token != "" {
			t.Errorf("%q: %+v, %v", name, e, err)
		}
	}
	e, err := environments.Find("child")
	if err != nil || e.URL != "" || e.Command == nil || !slices.Equal(e.Command.Args, []string{"ssh", "box"}) ||
		e.Command.Dir != filepath.Join(home, "work") || !slices.Contains(e.Command.Env, "A=b") || e.Options.InitializeTimeout != 3*time.Second {
		t.Errorf("child: %+v, %v", e, err)
	}
	if e, err := environments.Find("local"); err != nil || e.Name != "local" || e.URL != "" || e.Command != nil {
		t.Errorf("local: %+v, %v", e, err)
	}
	if _, err := environments.Find("none"); !errors.Is(err, environments.ErrNone) {
		t.Errorf("none: %v", err)
	}
	want := "environment `bax` is not configured in " + file + "; the environments are local, box and child"
	if _, err := environments.Find("bax"); err == nil || err.Error() != want {
		t.Errorf("bax: %v", err)
	}
	if err := os.WriteFile(file, []byte("x = 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := environments.Find("box"); !errors.As(err, new(*environments.ConfigError)) {
		t.Errorf("a bad file: %v", err)
	}
}
