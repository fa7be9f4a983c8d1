package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"execserver/client/environments"
	"execserver/internal/errno"
)

// codexFile is the text of environments.toml. Its methods change lines and leave all
// others as they are. They look only at the beginnings of lines, so check compares what
// the library reads in the result with what it should say.
type codexFile struct {
	path  string
	old   []byte // nil if there is no file
	lines []string
	want  map[string]any // what lines should mean
}

// errLayout is the error for a file that these methods do not understand.
var errLayout = errors.New("this program cannot change a file that is laid out like this one; change it by hand")

// readCodexFile reads the file, unless there is none. It refuses one that Codex refuses.
func readCodexFile() (*codexFile, error) {
	path, err := environments.File()
	if err != nil {
		return nil, err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // the link stays one
	}
	f := &codexFile{path: path, want: map[string]any{}}
	f.old, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, errno.Wrap(err))
	}
	if err := environments.Check(path, f.old); err != nil {
		return nil, err
	}
	if err := toml.Unmarshal(f.old, &f.want); err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	if _, blocks := f.want["environments"].([]map[string]any); f.want["environments"] != nil && !blocks {
		return nil, fmt.Errorf("change %s: %w", path, errLayout)
	}
	if f.lines = strings.SplitAfter(string(f.old), "\n"); f.lines[len(f.lines)-1] == "" {
		f.lines = f.lines[:len(f.lines)-1]
	}
	return f, nil
}

// ids returns the names of the environments, in the order of the file.
func (f *codexFile) ids() (ids []string) {
	for _, entry := range f.entries() {
		id, _ := entry["id"].(string)
		ids = append(ids, id)
	}
	return ids
}

func (f *codexFile) entries() []map[string]any {
	entries, _ := f.want["environments"].([]map[string]any)
	return entries
}

var (
	entryHeader = regexp.MustCompile(`^\s*\[\[\s*environments\s*\]\]`)
	partHeader  = regexp.MustCompile(`^\s*\[+\s*environments\s*\.`)
)

func isHeader(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "[") }

// hasContent reports whether a line is neither empty nor a comment.
func hasContent(line string) bool {
	text := strings.TrimSpace(line)
	return text != "" && text[0] != '#'
}

// block returns the lines of the entry of that number.
func (f *codexFile) block(number int) (start, end int, err error) {
	for i, line := range f.lines {
		if !entryHeader.MatchString(line) {
			continue
		}
		if number > 0 {
			number--
			continue
		}
		end = i + 1
		for j := end; j < len(f.lines) && (!isHeader(f.lines[j]) || partHeader.MatchString(f.lines[j])); j++ {
			if hasContent(f.lines[j]) {
				end = j + 1 // comments after it belong to what follows
			}
		}
		return i, end, nil
	}
	return 0, 0, errLayout
}

// put adds an entry, or puts it in the place of the one with its name.
func (f *codexFile) put(name, entry string) error {
	var added struct{ Environments []map[string]any }
	if err := toml.Unmarshal([]byte(entry), &added); err != nil {
		return err
	}
	lines := strings.SplitAfter(strings.TrimSuffix(entry, "\n"), "\n")
	lines[len(lines)-1] += "\n"
	entries := slices.Clone(f.entries())
	if number := slices.Index(f.ids(), name); number >= 0 {
		start, end, err := f.block(number)
		if err != nil {
			return err
		}
		f.lines = slices.Replace(f.lines, start, end, lines...)
		entries[number] = added.Environments[0]
	} else {
		if last := len(f.lines) - 1; last >= 0 {
			f.lines[last] = strings.TrimSuffix(f.lines[last], "\n") + "\n"
			f.lines = append(f.lines, "\n")
		}
		f.lines = append(f.lines, lines...)
		entries = append(entries, added.Environments[0])
	}
	f.want["environments"] = entries
	return nil
}

// remove removes an entry.
func (f *codexFile) remove(name string) error {
	number := slices.Index(f.ids(), name)
	start, end, err := f.block(number)
	if err != nil {
		return err
	}
	blank := func(i int) bool { return i < 0 || i >= len(f.lines) || strings.TrimSpace(f.lines[i]) == "" }
	if start > 0 && blank(start-1) && blank(end) {
		start--
	}
	f.lines = slices.Delete(f.lines, start, end)
	entries := slices.Delete(slices.Clone(f.entries()), number, number+1)
	f.want["environments"] = entries
	if len(entries) == 0 {
		delete(f.want, "environments")
	}
	return nil
}

// head returns where the settings before the first table end.
func (f *codexFile) head() int {
	if first := slices.IndexFunc(f.lines, isHeader); first >= 0 {
		return first
	}
	return len(f.lines)
}

// setting returns the line of a setting before the first table, or -1.
func (f *codexFile) setting(key string) int {
	is := regexp.MustCompile(`^\s*"?` + key + `"?\s*=`)
	return slices.IndexFunc(f.lines[:f.head()], is.MatchString)
}

// value is that of a setting that this program can replace, after the equals sign.
var value = regexp.MustCompile(`=\s*("[^"\\]*"|'[^']*'|true|false)`)

// set sets a setting before the first table. comment goes above a new line.
func (f *codexFile) set(key, text string, to any, comment string) {
	f.want[key] = to
	if at := f.setting(key); at >= 0 {
		f.lines[at] = value.ReplaceAllLiteralString(f.lines[at], "= "+text)
		return
	}
	at := f.head()
	for at > 0 && strings.HasPrefix(strings.TrimSpace(f.lines[at-1]), "#") {
		at-- // these belong to the table
	}
	for i, line := range slices.Backward(f.lines[:at]) {
		if hasContent(line) {
			at = i + 1
			break
		}
	}
	added := []string{key + " = " + text + "\n"}
	if comment != "" {
		added = append([]string{"# " + comment + "\n"}, added...)
	}
	if at < len(f.lines) && strings.TrimSpace(f.lines[at]) != "" {
		added = append(added, "\n")
	}
	if at > 0 {
		f.lines[at-1] = strings.TrimSuffix(f.lines[at-1], "\n") + "\n"
	}
	f.lines = slices.Insert(f.lines, at, added...)
}

// unset removes a setting before the first table.
func (f *codexFile) unset(key string) {
	delete(f.want, key)
	if at := f.setting(key); at >= 0 {
		f.lines = slices.Delete(f.lines, at, at+1)
	}
}

// text returns the new content. It is an error if Codex would refuse it, or if it means
// something else than it should.
func (f *codexFile) text() ([]byte, error) {
	text := []byte(strings.Join(f.lines, ""))
	if bytes.Contains(f.old, []byte("\r\n")) {
		text = bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
	}
	var means map[string]any
	err := toml.Unmarshal(text, &means)
	if err != nil || !reflect.DeepEqual(means, f.want) {
		return nil, fmt.Errorf("change %s: %w", f.path, errLayout)
	}
	if err := environments.Check(f.path, text); err != nil {
		return nil, fmt.Errorf("change %s: %w", f.path, err)
	}
	return text, nil
}

// write replaces the file, whose old content it keeps in backup, the path that it returns
// if there was a file.
func (f *codexFile) write(text []byte) (backup string, err error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return "", fmt.Errorf("make the directory of environments.toml: %w", err)
	}
	if f.old != nil {
		backup = f.path + ".bak"
		if err := putFile(backup, f.old); err != nil {
			return "", fmt.Errorf("make a backup of %s: %w", f.path, err)
		}
	}
	now, err := os.ReadFile(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return backup, fmt.Errorf("read %s again: %w", f.path, err)
	}
	if (f.old == nil) != (err != nil) || !bytes.Equal(now, f.old) {
		return backup, fmt.Errorf("another program has changed %s in the meantime; try again", f.path)
	}
	if err := putFile(f.path, text); err != nil {
		return backup, fmt.Errorf("write %s: %w", f.path, err)
	}
	return backup, nil
}

// putFile puts a file with this content, which only its owner may read, in the place
// of path. Nobody sees a part of it.
func putFile(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // what is left of it
	}
	return err
}
