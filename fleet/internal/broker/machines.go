package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/nats-io/nats-server/v2/server"

	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/auth"
)

// Machines decides which machines may join. It reads its file again by Refresh and Poll.
type Machines struct{ *auth.Reloaded[*known] }

// digest is the SHA-256 sum of a token.
type digest = [sha256.Size]byte

// known is what a file says, by the digests of the tokens.
type known struct {
	entries []machine
	of      map[digest][]machine
}

func newKnown(entries []machine) *known {
	k := &known{entries: entries, of: make(map[digest][]machine)}
	for _, entry := range entries {
		k.of[entry.digest] = append(k.of[entry.digest], entry)
	}
	return k
}

// machine is a [[machine]] of the file: a token, and the names that its bearer may take.
type machine struct {
	Name    string    `toml:"name"` // or a pattern that ends with "*"
	Account string    `toml:"account"`
	SHA256  string    `toml:"sha256"`
	Expires time.Time `toml:"expires"`
	digest  digest
}

// maxMachines bounds the entries of a file.
const maxMachines = 10_000

// ReadMachines reads a file of machines.
func ReadMachines(file string) (*Machines, error) {
	path, err := auth.AbsolutePath(file)
	if err != nil {
		return nil, err
	}
	value, err := auth.LoadFiles(func(files *auth.Files) (*known, error) {
		text, err := files.Read(path, auth.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("read the machines in %s: %w", path, err)
		}
		entries, err := parseMachines(text)
		if err != nil {
			return nil, fmt.Errorf("machines in %s: %w", path, err)
		}
		return newKnown(entries), nil
	})
	return &Machines{value}, err
}

func parseMachines(text []byte) ([]machine, error) {
	var file struct {
		Machine []machine `toml:"machine"`
	}
	meta, err := toml.Decode(string(text), &file)
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		return nil, fmt.Errorf("line %d cannot be understood", parse.Position.Line)
	}
	if err != nil {
		return nil, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("unknown key %q", unknown[0])
	}
	if len(file.Machine) > maxMachines {
		return nil, fmt.Errorf("there are %d machines, the limit is %d", len(file.Machine), maxMachines)
	}
	for i := range file.Machine {
		if err := file.Machine[i].complete(); err != nil {
			return nil, fmt.Errorf("machine %d (name %q): %w", i+1, file.Machine[i].Name, err)
		}
	}
	return file.Machine, nil
}

// complete checks an entry.
func (m *machine) complete() error {
	if m.Account == "" {
		m.Account = auth.DefaultAccount
	}
	sum, err := hex.DecodeString(m.SHA256)
	switch {
	case m.Name != "*" && !natstransport.ValidName(strings.TrimSuffix(m.Name, "*")):
		return errors.New("name must have from 1 to 64 of the characters A-Z a-z 0-9 _ -, and may end with *")
	case !natstransport.ValidName(m.Account):
		return errors.New("account must have from 1 to 64 of the characters A-Z a-z 0-9 _ -")
	case err != nil || len(sum) != sha256.Size:
		return errors.New("sha256 must have 64 hexadecimal digits")
	}
	m.digest = digest(sum)
	return nil
}

// Accounts returns the accounts that machines can join, and the default one.
func (m *Machines) Accounts() []string {
	accounts := []string{auth.DefaultAccount}
	for _, entry := range m.Get().entries {
		if !slices.Contains(accounts, entry.Account) {
			accounts = append(accounts, entry.Account)
		}
	}
	return accounts
}

// minTokenBytes is the least length of a token.
const minTokenBytes = 16

// signIn returns the digest of a token, if it lets a machine sign in with a name, and the
// account of the machine.
func (m *Machines) signIn(name, token string) (sum digest, account string, ok bool) {
	if !natstransport.ValidName(name) || len(token) < minTokenBytes {
		return sum, "", false
	}
	sum = sha256.Sum256([]byte(token))
	account, ok = m.account(name, sum)
	return sum, account, ok
}

// account returns the account of a machine that has signed in with a token of this digest.
func (m *Machines) account(name string, sum digest) (account string, ok bool) {
	for _, entry := range m.Get().of[sum] {
		if auth.MatchName(entry.Name, name) && (entry.Expires.IsZero() || time.Now().Before(entry.Expires)) {
			return entry.Account, true
		}
	}
	return "", false
}

// machinePermissions returns what a machine may do in its account: serve its name, and keep
// its entry.
func machinePermissions(name string) *server.Permissions {
	publish, subscribe := fleet.Permissions(name)
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: subscribe},
		Response:  &server.ResponsePermission{MaxMsgs: 1, Expires: time.Minute},
	}
}
