package codexconf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"execserver/client/environments"
	"execserver/internal/cli"
	"execserver/internal/sys"
)

// configFile is environments.toml. Its methods add and remove whole lines by the beginnings of
// tables and settings. finish parses the result, and leaves the file alone if it differs from
// want.
type configFile struct {
	path    string
	info    fs.FileInfo // nil without a file
	lines   []string
	head    []string       // settings that go before lines
	want    map[string]any // the expected result, parsed
	changes []string       // changed lines with + or -, for people
	secret  bool           // a token is added
	err     error          // the reason why the file cannot be edited
}

// readConfig reads the file, if it exists.
func readConfig() (*configFile, error) {
	path, err := environments.File()
	if err != nil {
		return nil, err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // keep the link
	} else if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s is a dangling link", path)
	}
	f := &configFile{path: path, want: map[string]any{}}
	if f.info, err = os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, sys.WrapError(err))
	}
	f.lines = slices.Collect(strings.Lines(string(text)))
	if f.err = environments.Check(path, text); f.err == nil {
		f.err = toml.Unmarshal(text, &f.want)
	}
	if _, tables := f.want["environments"].([]map[string]any); f.err == nil && f.want["environments"] != nil && !tables {
		f.err = errors.New("its environments are not tables of their own")
	}
	return f, nil
}

// entries returns the parsed environments.
func (f *configFile) entries() []map[string]any {
	entries, _ := f.want["environments"].([]map[string]any)
	return entries
}

// ids returns the names of the environments, in the order of the file.
func (f *configFile) ids() (ids []string) {
	for _, entry := range f.entries() {
		id, _ := entry["id"].(string)
		ids = append(ids, id)
	}
	return ids
}

// tokens matches lines with secrets.
var tokens = regexp.MustCompile(`^(\s*"?auth_bearer_token"?\s*=).*`)

// note records changed lines, with a sign before each.
func (f *configFile) note(sign string, lines ...string) {
	for _, line := range lines {
		line = strings.TrimRight(line, "\r\n")
		f.changes = append(f.changes, sign+tokens.ReplaceAllString(line, "$1 (not shown)"))
	}
}

// add appends an entry, or replaces the one with its name.
func (f *configFile) add(name, entry string) error {
	var added struct{ Environments []map[string]any }
	if err := toml.Unmarshal([]byte(entry), &added); err != nil {
		return err
	}
	if number := slices.Index(f.ids(), name); number >= 0 {
		if reflect.DeepEqual(f.entries()[number], added.Environments[0]) {
			return nil
		}
		f.remove(name)
	}
	lines := slices.Collect(strings.Lines(entry))
	if last := len(f.lines) - 1; last >= 0 {
		f.lines[last] = strings.TrimSuffix(f.lines[last], "\n") + "\n"
		f.lines = append(f.lines, "\n")
	}
	f.lines = append(f.lines, lines...)
	f.note("+", lines...)
	f.want["environments"] = append(slices.Clone(f.entries()), added.Environments[0])
	_, token := added.Environments[0]["auth_bearer_token"]
	f.secret = f.secret || token
	return nil
}

var (
	entryHeader = regexp.MustCompile(`^\s*\[\[\s*environments\s*\]\]`)
	entryPart   = regexp.MustCompile(`^\s*(\[+\s*environments\s*\.|[^\s#\[])`) // a table in it, or a setting
)

func isHeader(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "[") }

// remove removes the entry of that name.
func (f *configFile) remove(name string) {
	number := slices.Index(f.ids(), name)
	start, end := f.table(number)
	if start < 0 {
		f.note("-", "[[environments]]", "id = "+quoteTOML(name))
		if f.err == nil {
			f.err = fmt.Errorf("there is no table of %q in it", name)
		}
		return
	}
	f.note("-", f.lines[start:end]...)
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
}

// table returns the lines of an entry by its number, without the comments at its end, which
// belong to the next one. start is -1 if there is no such entry.
func (f *configFile) table(number int) (start, end int) {
	start = -1
	if number < 0 {
		return start, end
	}
	for i, line := range f.lines {
		switch {
		case start < 0:
			if entryHeader.MatchString(line) {
				number--
			}
			if number < 0 {
				start, end = i, i+1
			}
		case entryPart.MatchString(line):
			end = i + 1
		case isHeader(line):
			return start, end
		}
	}
	return start, end
}

// set puts a setting with its comments at the top of the file, and removes its previous line.
func (f *configFile) set(key, text string, value any, about ...string) {
	f.unset(key)
	f.want[key] = value
	added := append(about, key+" = "+text+"\n")
	f.note("+", added...)
	f.head = append(f.head, added...)
}

// unset removes the line of a setting before the first table.
func (f *configFile) unset(key string) {
	delete(f.want, key)
	is := regexp.MustCompile(`^\s*"?` + key + `"?\s*=`)
	for i, line := range f.lines {
		if isHeader(line) {
			return
		}
		if is.MatchString(line) {
			f.note("-", line)
			f.lines = slices.Delete(f.lines, i, i+1)
			return
		}
	}
}

// localComment explains include_local in the file.
const localComment = "# Or Codex would run commands on this machine when it cannot reach the other one.\n"

// uncomment removes a comment that this program has written.
func (f *configFile) uncomment(comment string) {
	if i := slices.Index(f.lines, comment); i >= 0 {
		f.note("-", comment)
		f.lines = slices.Delete(f.lines, i, i+1)
	}
}

// text returns the new content. It returns an error if Codex would refuse the content, or it
// differs from want.
func (f *configFile) text() ([]byte, error) {
	if f.err != nil {
		return nil, f.err
	}
	lines := f.head
	if len(f.head) > 0 && len(f.lines) > 0 && strings.TrimSpace(f.lines[0]) != "" {
		lines = append(lines, "\n")
	}
	text := []byte(strings.Join(append(lines, f.lines...), ""))
	var says map[string]any
	if err := toml.Unmarshal(text, &says); err != nil || !reflect.DeepEqual(says, f.want) {
		return nil, errors.New("this program cannot edit its format")
	}
	return text, environments.Check(f.path, text)
}

// finish prints the changes, and writes the file.
func (f *configFile) finish(log io.Writer, dryRun bool) error {
	if len(f.changes) == 0 {
		fmt.Fprintf(log, "%s has this entry already\n", cli.Printable(f.path))
		return nil
	}
	text, err := f.text()
	fmt.Fprintf(log, "%s:\n%s\n", cli.Printable(f.path), cli.PrintableLines(strings.Join(f.changes, "\n")))
	if err != nil {
		return fmt.Errorf("%s stays as it is: %w; make the change by hand", f.path, err)
	}
	if dryRun {
		return nil
	}
	if err := f.write(text); err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	return nil
}

// write replaces the file atomically, and keeps its mode and owner.
func (f *configFile) write(text []byte) error {
	if f.secret && f.info != nil && f.info.Mode()&0o044 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("others can read it, and the entry has a token; first run: chmod 600 %s", cli.QuoteShell(f.path))
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails after the rename
	_, err = file.Write(text)
	if err == nil && f.info != nil {
		err = errors.Join(keepOwner(file, f.info), file.Chmod(f.info.Mode().Perm()))
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), f.path)
}
