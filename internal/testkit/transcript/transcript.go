// Package transcript reads and runs the wire transcripts in the directory transcripts.
// They interleave client and server lines, so that the order is part of the contract.
// transcripts/README.md describes their format.
//
// Start at [ParseFile] and [File.Run]. The package knows no transport: the caller passes
// a [Server] that opens connections.
package transcript

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is one archive of scenarios.
type File struct {
	Name       string // of the file, without extension
	Path       string
	Transports []string          // that the file is for; empty: all
	Options    map[string]string // of the server, by the names of its flags
	Env        []string          // of the server, as NAME=value
	Scenarios  []*Scenario

	comment string
}

// Scenario is one section of a file. It has its own server.
type Scenario struct {
	Name    string
	Differs string // why the released server does otherwise; empty: it agrees
	Maybe   bool   // it does so only sometimes

	steps []step
	lines []string // as read
}

// For reports whether the file applies to a transport.
func (f *File) For(transport string) bool {
	return len(f.Transports) == 0 || slices.Contains(f.Transports, transport)
}

// ParseDir reads all transcripts of a directory.
func ParseDir(dir string) ([]*File, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no transcripts in %s", dir)
	}
	files := make([]*File, 0, len(paths))
	for _, path := range paths {
		f, err := ParseFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// ParseFile reads one transcript.
func ParseFile(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.Path = path
	f.Name = strings.TrimSuffix(filepath.Base(path), ".txtar")
	return f, nil
}

// Parse reads one transcript from memory.
func Parse(data []byte) (*File, error) {
	if !bytes.HasSuffix(data, []byte("\n")) {
		return nil, errors.New("the last line has no end")
	}
	f := &File{Options: make(map[string]string)}
	var section *Scenario
	var comment []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		switch name, ok := sectionName(line); {
		case ok:
			section = &Scenario{Name: name}
			f.Scenarios = append(f.Scenarios, section)
		case section == nil:
			comment = append(comment, line)
		default:
			section.lines = append(section.lines, line)
		}
	}
	f.comment = strings.Join(comment, "\n")
	for _, line := range comment {
		if err := f.header(line); err != nil {
			return nil, err
		}
	}
	for _, s := range f.Scenarios {
		if err := s.parse(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return f, nil
}

// sectionName recognises the line that begins a file of a txtar archive.
func sectionName(line string) (string, bool) {
	rest, ok := strings.CutPrefix(line, "-- ")
	if !ok {
		return "", false
	}
	name, ok := strings.CutSuffix(rest, " --")
	return strings.TrimSpace(name), ok && strings.TrimSpace(name) != ""
}

// header parses the lines of the comment that set options.
func (f *File) header(line string) error {
	key, value, ok := strings.Cut(line, ": ")
	if !ok {
		return nil
	}
	words := strings.Fields(value)
	switch key {
	case "transports":
		f.Transports = words
	case "env":
		f.Env = append(f.Env, words...)
	case "options":
		for _, word := range words {
			name, value, ok := strings.Cut(word, "=")
			if !ok {
				return fmt.Errorf("option %q has no value", word)
			}
			f.Options[name] = value
		}
	}
	return nil
}

// Format returns the text of the file, with the changes of an update.
func (f *File) Format() []byte {
	var b strings.Builder
	b.WriteString(f.comment + "\n")
	for _, s := range f.Scenarios {
		b.WriteString("-- " + s.Name + " --\n")
		for _, line := range s.lines {
			b.WriteString(line + "\n")
		}
	}
	return []byte(b.String())
}
