package broker

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"execserver/internal/auth"
	"execserver/internal/sys"
)

// Tokens makes and revokes the tokens of machines, one for each name, of the default account.
// It keeps their digests in a file, and no token. Its methods may be called concurrently.
type Tokens struct {
	*Machines
	path string

	mu    sync.Mutex
	first map[string]bool // names that had no token when the program started
}

// tokensFile is in the directory of every gateway that makes tokens. It is a file of machines.
const tokensFile = "machines.toml"

// maxTokens bounds the entries of the file: with the longest names it is below the size up to
// which files of machines are read, which is 1 MiB.
const maxTokens = 5_000

const tokensHead = "# exec-fleet token NAME writes this file.\n"

// OpenTokens opens the tokens in the directory of a gateway, which has none at first. No other
// program may use the directory.
func OpenTokens(dir string) (*Tokens, error) {
	t := &Tokens{path: filepath.Join(dir, tokensFile), first: make(map[string]bool)}
	if _, err := os.Lstat(t.path); errors.Is(err, fs.ErrNotExist) {
		err = t.write(nil)
		if err != nil {
			return nil, err
		}
	}
	var err error
	t.Machines, err = ReadMachines(t.path)
	return t, err
}

// ErrTooManyTokens is the error of Make at the limit.
var ErrTooManyTokens = fmt.Errorf("the gateway has its limit of %d tokens of machines; revoke some with exec-fleet token --revoke NAME", maxTokens)

// Make makes a token for a name. The one before does not hold any more.
func (t *Tokens) Make(name string) (token string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries, had := t.without(name)
	if len(entries) >= maxTokens {
		return "", ErrTooManyTokens
	}
	token = rand.Text()
	entry := machine{Name: name, Account: auth.DefaultAccount, digest: sha256.Sum256([]byte(token))}
	if err := t.replace(append(entries, entry)); err != nil {
		return "", err
	}
	if !had {
		t.first[name] = true
	}
	return token, nil
}

// Revoke makes the token of a name hold no more. It reports whether there was one.
func (t *Tokens) Revoke(name string) (had bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries, had := t.without(name)
	if !had {
		return false, nil
	}
	return true, t.replace(entries)
}

// New reports whether the first token of a name was made since the program started: no machine
// can have had the name before.
func (t *Tokens) New(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first[name]
}

// without returns the entries but for those of a name.
func (t *Tokens) without(name string) (rest []machine, had bool) {
	all := t.Get().entries
	rest = slices.DeleteFunc(slices.Clone(all), func(m machine) bool { return m.Name == name })
	return rest, len(rest) < len(all)
}

// replace replaces the entries, on the disk and then for the machines that sign in.
func (t *Tokens) replace(entries []machine) error {
	if err := t.write(entries); err != nil {
		return err
	}
	_, err := t.Refresh()
	return err
}

// write replaces the file. A program that ends meanwhile leaves the one before.
func (t *Tokens) write(entries []machine) (err error) {
	text := new(strings.Builder)
	text.WriteString(tokensHead)
	for _, m := range entries {
		fmt.Fprintf(text, "\n[[machine]]\nname = %q\naccount = %q\nsha256 = \"%x\"\n", m.Name, m.Account, m.digest)
		if !m.Expires.IsZero() {
			fmt.Fprintf(text, "expires = %s\n", m.Expires.Format("2006-01-02T15:04:05Z07:00"))
		}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write the tokens of machines: %w", sys.WrapError(err))
		}
	}()
	next := t.path + ".new"
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text.String())
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(next)
		return err
	}
	return os.Rename(next, t.path)
}
