package sandbox

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestAskTogether lets many ask about the file of a killed program at once. Nobody may
// mistake another asker's lock for a live program.
func TestAskTogether(t *testing.T) {
	name := filepath.Join(t.TempDir(), "left"+sharedSuffix)
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				if isLocked(name) {
					t.Error("the file is locked")
					return
				}
			}
		})
	}
	wg.Wait()
}
