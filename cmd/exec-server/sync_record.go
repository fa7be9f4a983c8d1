package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"execserver/client"
	"execserver/internal/statefile"
)

// syncRecord is what push and pull remember about two directories: the files as both sides
// had them last.
type syncRecord struct {
	Local   string               `json:"local"`
	There   string               `json:"there"`
	Machine string               `json:"machine"` // see machineID
	Created int64                `json:"created"` // when There was made, in Unix milliseconds; 0 if unknown
	Choice  string               `json:"choice"`  // filesAll or filesGit
	Files   map[string]fileState `json:"files"`

	path string
}

// openRecord reads the record of two directories, or makes a new one.
func openRecord(ctx context.Context, env *client.Environment, local, there string) (*syncRecord, error) {
	state, err := statefile.Dir()
	if err != nil {
		return nil, err
	}
	r := &syncRecord{Local: local, There: there, Machine: machineID(ctx, env)}
	key := sha256.Sum256([]byte(strings.Join([]string{local, there, r.Machine}, "\x00")))
	r.path = filepath.Join(state, "workspaces", hex.EncodeToString(key[:16])+".json")
	text, err := os.ReadFile(r.path)
	if err == nil {
		err = json.Unmarshal(text, r)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read what was copied before: %w; without %s, files that differ are conflicts", err, r.path)
	}
	if r.Files == nil {
		r.Files = make(map[string]fileState)
	}
	return r, nil
}

// save writes the record. Of two pushes or pulls at once, the last one's remains; files that
// it does not know are compared.
func (r *syncRecord) save() error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return statefile.Replace(r.path, text)
}

// machineID returns a text that is another one for another machine, as far as the machine
// tells. A container that was made again is another machine.
func machineID(ctx context.Context, env *client.Environment) string {
	const most = 256
	id := env.Info().OS + "\n" + env.Info().HomeDir
	for _, name := range []string{"etc/machine-id", "proc/sys/kernel/hostname"} {
		file, err := env.FS("/").WithContext(ctx).Open(name)
		if err != nil {
			continue // other systems have other files
		}
		text, _ := io.ReadAll(io.LimitReader(file, most))
		_ = file.Close()
		id += "\n" + strings.TrimSpace(string(text))
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}
