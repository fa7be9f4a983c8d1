package filesystem_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

// TestLateWrite has a slow write go on while another connection of the client writes the same
// file: what was answered last stays.
func TestLateWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	begun, goOn, first, second := make(chan bool), make(chan bool), make(chan error, 1), make(chan error, 1)
	go func() {
		first <- filesystem.WriteFile(t.Context(), path, []byte(strings.Repeat("late", 1000)), filesystem.WriteOptions{InPlace: func() func() {
			close(begun)
			<-goOn
			return func() {}
		}})
	}()
	<-begun
	go func() { second <- filesystem.WriteFile(t.Context(), path, []byte("new"), filesystem.WriteOptions{}) }()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := filesystem.Writers(); n < 2 && len(second) == 0 {
			return fmt.Errorf("%d writers", n)
		}
		return nil
	})
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); string(got) != "new" {
		t.Errorf("the file has %.10q, %v", got, err)
	}
}
