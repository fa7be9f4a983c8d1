package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
