package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// TestCopyThatWritesNothing ends a copy over an existing file before its first block is written.
// The space that was reserved for the new content is free again, and the file keeps what another
// program appends meanwhile.
func TestCopyThatWritesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(background(t))
	defer cancel()
	local := t.TempDir()
	file := filepath.Join(local, "large")
	if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	interfere := sync.OnceFunc(func() {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(" and new")
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Error(err)
		}
		cancel()
	})
	fake := fileServer{
		list: func(string) []object { return []object{entry("large", "file", 8<<20)} },
		hold: func(_ *fakeConn, m fakeMessage) bool {
			if m.Method != protocol.MethodReadBlock {
				return false
			}
			interfere()
			return true // without an answer
		},
	}
	opts := new(client.Options)
	client.SetCleanupTime(opts, testkit.Patience)
	env := newFake(t, fake.serve).dial(opts)
	if err := env.FS("/far").WithContext(ctx).CopyOut(".", local, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the copy: %v", err)
	}
	_ = env.Close()
	if content, err := os.ReadFile(file); string(content) != "old and new" || err != nil {
		t.Fatalf("the file has %d bytes, %v", len(content), err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > 64<<10 {
		t.Errorf("the file of %d bytes takes %d bytes of the disk", info.Size(), used)
	}
}
