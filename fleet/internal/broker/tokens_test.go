//go:build unix

package broker_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"execserver/fleet/internal/broker"
)

// TestTokens makes tokens for machines, many at once, and revokes one. The file outlives the
// gateway, and has no token in it.
func TestTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens, err := broker.OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	const machines = 20
	var made [machines]string
	var wg sync.WaitGroup
	for i := range machines {
		wg.Go(func() {
			var err error
			if made[i], err = tokens.Make(fmt.Sprint("box-", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if had, err := tokens.Revoke("box-0"); !had || err != nil {
		t.Errorf("revoke: %v %v", had, err)
	}
	if !tokens.New("box-1") || tokens.New("box-20") {
		t.Error("which names are new is not known")
	}
	path := filepath.Join(dir, "machines.toml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "[[machine]]"); got != machines-1 {
		t.Errorf("the file has %d machines, want %d:\n%s", got, machines-1, text)
	}
	for _, token := range made {
		if len(token) < 24 || strings.Contains(string(text), token) {
			t.Errorf("the file has the token %q, or it is short", token)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	again, err := broker.OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	if had, err := again.Revoke("box-1"); !had || err != nil || again.New("box-2") {
		t.Errorf("after a start: %v %v, or a name with a token is new", had, err)
	}
	if _, err := again.Make("box-2"); err != nil || again.New("box-2") {
		t.Errorf("a name that had a token before the start is new; %v", err)
	}
}

// TestTooManyTokens makes one token more than there may be. Those for names that have one can
// still be replaced.
func TestTooManyTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const limit = 5_000
	long := strings.Repeat("x", 60)
	text := new(strings.Builder)
	for i := range limit {
		fmt.Fprintf(text, "[[machine]]\nname = \"%s%04d\"\nsha256 = \"%064d\"\n", long, i, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "machines.toml"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := broker.OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.Make("one-more"); !errors.Is(err, broker.ErrTooManyTokens) {
		t.Errorf("one more: %v", err)
	}
	if _, err := tokens.Make(long + "0007"); err != nil {
		t.Errorf("a new one for a name that has one: %v", err)
	}
	if _, err := broker.OpenTokens(dir); err != nil {
		t.Errorf("a start with as many tokens as there may be: %v", err)
	}
}
