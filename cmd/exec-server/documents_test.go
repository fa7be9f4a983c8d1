package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"execserver/internal/cli/root"
)

// documents returns the paths of the pages that people read.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	if len(paths) < 10 {
		t.Fatalf("only %q", paths)
	}
	return paths
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	unlinked = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the names by which GitHub links to the headings of a page.
func anchors(page string) map[string]bool {
	names := map[string]bool{}
	for _, found := range heading.FindAllStringSubmatch(page, -1) {
		text := link.ReplaceAllString(found[1], "]")
		names[strings.ReplaceAll(unlinked.ReplaceAllString(strings.ToLower(text), ""), " ", "-")] = true
	}
	return names
}

// TestLinks follows every link of the documents to another file or heading here.
func TestLinks(t *testing.T) {
	for _, path := range documents(t) {
		page := readText(t, path)
		for _, found := range link.FindAllStringSubmatch(page, -1) {
			if strings.Contains(found[1], "://") || strings.HasPrefix(found[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(found[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", path, found[1], err)
			} else if anchor != "" && !anchors(readText(t, target))[anchor] {
				t.Errorf("%s links to %s, which has no such heading", path, found[1])
			}
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSizes checks that the pages which people read from the beginning to the end stay short, and
// that docs does not grow more pages.
func TestSizes(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, limit := range []struct {
		page  string
		unit  string
		size  func(text string) int
		limit int
	}{
		{"README.md", "lines", func(text string) int { return strings.Count(text, "\n") }, 80},
		{"PROTOCOL.md", "bytes", func(text string) int { return len(text) }, 25_000},
		{"CONTRIBUTING.md", "bytes", func(text string) int { return len(text) }, 8192},
	} {
		if size := limit.size(readText(t, filepath.Join(root, limit.page))); size > limit.limit {
			t.Errorf("%s has %d %s, the limit is %d: remove something else from it", limit.page, size, limit.unit, limit.limit)
		}
	}
	const maxPages = 12
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) > maxPages {
		t.Errorf("docs has %d pages, the limit is %d: extend another page instead", len(pages), maxPages)
	}
}

// TestNamedFiles checks that the source files which CONTRIBUTING.md names exist: one by its path,
// or by the name that a file somewhere has.
func TestNamedFiles(t *testing.T) {
	names := map[string]bool{}
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names[entry.Name()] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("`([\\w/]+\\.go)`").FindAllStringSubmatch(readText(t, filepath.Join("..", "..", "CONTRIBUTING.md")), -1) {
		_, err := os.Stat(filepath.Join("..", "..", found[1]))
		if strings.Contains(found[1], "/") && err != nil || !names[filepath.Base(found[1])] {
			t.Errorf("there is no %s", found[1])
		}
	}
}

// blocks returns the content of the blocks of a kind, such as "sh".
func blocks(text, kind string) (found []string) {
	for _, match := range regexp.MustCompile("(?ms)^```"+kind+"\n(.*?)^```").FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	return found
}

// programLine matches a call of this program, with its arguments, at the beginning of a line.
var programLine = regexp.MustCompile(`(?m)^(?:\$ )?exec-server (.*)$`)

// TestPages checks that the commands and flags on the pages exist, and that no entry for
// Codex leaves out the line without which it would run commands on the local machine.
func TestPages(t *testing.T) {
	for _, page := range documents(t) {
		text := strings.ReplaceAll(readText(t, page), "\\\n", " ") // continued lines
		for _, block := range append(blocks(text, "sh"), blocks(text, "console")...) {
			for _, match := range programLine.FindAllStringSubmatch(block, -1) {
				if err := understood(match[1]); err != nil {
					t.Errorf("%s: exec-server %s: %v", page, match[1], err)
				}
			}
		}
		for _, block := range blocks(text, "toml") {
			var config struct {
				IncludeLocal *bool `toml:"include_local"`
				Environments []any `toml:"environments"`
			}
			if _, err := toml.Decode(block, &config); err != nil {
				t.Errorf("%s: %v\n%s", page, err, block)
			}
			if len(config.Environments) > 0 && (config.IncludeLocal == nil || *config.IncludeLocal) {
				t.Errorf("%s has an entry without include_local = false:\n%s", page, block)
			}
		}
	}
}

// understood parses a command line of this program up to what the shell or another program
// gets, and runs nothing.
func understood(line string) error {
	line, _, _ = strings.Cut(line, " #")
	line = regexp.MustCompile(`"\$\([^)]*\)"|\$\$`).ReplaceAllString(line, "1") // what the shell puts in
	line, _, _ = strings.Cut(line, " -- ")
	line = regexp.MustCompile(` ?[<>|;&].*`).ReplaceAllString(line, "")
	command, args, err := root.New("").Find(strings.Fields(line))
	if err != nil {
		return err
	}
	return command.ParseFlags(args)
}
