package local_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"execserver/client"
	"execserver/client/local"
	"execserver/internal/testkit"
	"execserver/server"
)

func TestMain(m *testing.M) {
	server.RunHelper()
	testkit.VerifyMain(m)
}

// TestSandbox confines a command without a separate server: it writes to its directory, and
// nowhere else.
func TestSandbox(t *testing.T) {
	env, err := local.NewSandboxed(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	if s := env.Info().Sandbox; s != nil && s.Means == "none" {
		t.Skipf("no sandbox here: %s", s.Reason)
	}
	inside, outside := t.TempDir(), filepath.Join(t.TempDir(), "f")
	command := env.Command(t.Context(), "sh", "-c", "echo inside >f; echo outside >"+outside)
	command.Dir = inside
	command.Sandbox = &client.Sandbox{Write: []string{inside}}
	if err := command.Run(); !errors.As(err, new(*client.ExitError)) {
		t.Errorf("the write to another directory: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(inside, "f")); !bytes.Equal(text, []byte("inside\n")) {
		t.Errorf("inside: %q, %v", text, err)
	}
	if _, err := os.Stat(outside); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("outside: %v", err)
	}
}
