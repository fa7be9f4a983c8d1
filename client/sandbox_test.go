//go:build unix

package client_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"execserver/client"
)

// TestSandbox checks that a command in a sandbox writes only what the sandbox lists, or
// does not start.
func TestSandbox(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		dir := t.TempDir()
		for name, test := range map[string]struct {
			sandbox  *client.Sandbox
			writable bool
		}{
			"none":  {nil, true},
			"read":  {&client.Sandbox{}, false},
			"write": {&client.Sandbox{Write: []string{dir}, Network: true}, true},
			// dir is in /tmp, or wherever TMPDIR leads.
			"workspace": {&client.Sandbox{Workspace: true}, true},
		} {
			file := filepath.Join(dir, name)
			c := env.Command(background(t), "touch", file)
			c.Dir = dir
			c.Sandbox = test.sandbox
			err := c.Run()
			_, statErr := os.Stat(file)
			written := statErr == nil
			switch {
			case test.sandbox == nil && (err != nil || !written):
				t.Errorf("%s: %v, written %v", name, err, written)
			case test.sandbox == nil:
			case errors.Is(err, errors.ErrUnsupported), errors.As(err, new(*client.StartError)):
				if written {
					t.Errorf("%s: written although %v", name, err)
				}
			case written != test.writable || (err == nil) != test.writable:
				t.Errorf("%s: %v, written %v", name, err, written)
			}
		}
	})
}
