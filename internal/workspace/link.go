package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"execserver/internal/statefile"
)

// Link makes the path of each workspace a symbolic link to its directory. It replaces a
// link that it made before, which it knows from a file (see package statefile), and nothing
// else.
func Link(list []Workspace) error {
	state, err := statefile.Dir()
	if err != nil {
		return err
	}
	for _, w := range list {
		if err := w.link(filepath.Join(state, "workspace-links.json")); err != nil {
			return fmt.Errorf("make %s a link to %s: %w", w.Path, w.Source, err)
		}
	}
	return nil
}

func (w Workspace) link(record string) error {
	made, err := readLinks(record)
	if err != nil {
		return err
	}
	dir, err := makeAll(filepath.Dir(w.Path))
	if err != nil {
		return err
	}
	path := filepath.Join(dir, filepath.Base(w.Path))
	switch text, err := os.Readlink(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err == nil && text == made[path]:
		if err := os.Remove(path); err != nil {
			return err
		}
	default:
		return errors.New("there is something else of this name, which stays")
	}
	made[path] = w.Source
	if err := writeLinks(record, made); err != nil { // first, so that no link is forgotten
		return err
	}
	return os.Symlink(w.Source, path)
}

// readLinks returns the links that were made, with their texts.
func readLinks(record string) (map[string]string, error) {
	text, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	made := map[string]string{}
	if err := json.Unmarshal(text, &made); err != nil {
		return nil, fmt.Errorf("understand %s: %w; remove it, and the links that it names", record, err)
	}
	return made, nil
}

// writeLinks replaces the record. Of two programs that write at once, one may forget the
// other's link, which then stays as it is.
func writeLinks(record string, made map[string]string) error {
	text, err := json.Marshal(made)
	if err != nil {
		return err
	}
	return statefile.Replace(record, append(text, '\n'))
}
