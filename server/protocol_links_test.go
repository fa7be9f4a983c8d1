package server_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	markdownHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	markdownLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	notInAnchor     = regexp.MustCompile(`[^\w\- ]`)
	namedSections   = regexp.MustCompile(`(?s)\bPROTOCOL\.md, ("[^"]+"(?:(?:, | and |\s#?\s*)"[^"]+")*)`)
	quoted          = regexp.MustCompile(`"([^"]+)"`)
)

// TestProtocolLinks keeps PROTOCOL.md and the transcripts tied to each other: its links
// lead somewhere, it links every transcript, and every transcript names sections that it has.
func TestProtocolLinks(t *testing.T) {
	document, err := os.ReadFile("../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	sections, anchors := map[string]bool{}, map[string]bool{}
	for _, m := range markdownHeading.FindAllStringSubmatch(string(document), -1) {
		sections[m[1]] = true
		anchor := notInAnchor.ReplaceAllString(strings.ToLower(m[1]), "")
		anchors["#"+strings.ReplaceAll(anchor, " ", "-")] = true
	}
	linked := map[string]bool{}
	for _, m := range markdownLink.FindAllStringSubmatch(string(document), -1) {
		target := m[1]
		if strings.HasPrefix(target, "#") {
			if !anchors[target] {
				t.Errorf("PROTOCOL.md links its section %s, which does not exist", target)
			}
			continue
		}
		path, _, _ := strings.Cut(target, "#")
		if _, err := os.Stat(filepath.Join("..", path)); err != nil {
			t.Errorf("PROTOCOL.md links %s: %v", target, err)
		}
		linked[path] = true
	}
	files, err := filepath.Glob("../transcripts/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		if !linked["transcripts/"+filepath.Base(file)] {
			t.Errorf("PROTOCOL.md does not link %s", file)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := namedSections.FindStringSubmatch(string(text))
		if names == nil {
			t.Errorf("%s names no section of PROTOCOL.md", file)
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(names[1], -1) {
			if section := strings.ReplaceAll(m[1], "\n# ", " "); !sections[section] {
				t.Errorf("%s names the section %q, which PROTOCOL.md does not have", file, section)
			}
		}
	}
}
