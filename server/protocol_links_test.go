package server_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"execserver/protocol"
)

var (
	markdownHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	markdownLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quotedSections  = regexp.MustCompile(`\b((?:[A-Z]+|docs/[a-z]+)\.md), (\\?"[^"]+"(?:(?:, | and )\\?"[^"]+")*)`)
	quoted          = regexp.MustCompile(`"([^"\\]+)\\?"`)
	commentMark     = regexp.MustCompile(`\n[\t ]*(?://|#) ?`)
)

// TestProtocolLinks keeps the documents of the protocol and the transcripts tied to each other:
// together they link every transcript, and every transcript names a section of theirs.
func TestProtocolLinks(t *testing.T) {
	linked := map[string]bool{}
	for _, document := range []string{"PROTOCOL.md", "EXTENSIONS.md"} {
		for _, m := range markdownLink.FindAllStringSubmatch(readFromRoot(t, document), -1) {
			linked[m[1]] = true
		}
	}
	files, err := filepath.Glob("../transcripts/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		name := "transcripts/" + filepath.Base(file)
		if !linked[name] {
			t.Errorf("neither PROTOCOL.md nor EXTENSIONS.md links %s", name)
		}
		if checkQuotedSections(t, name) == 0 {
			t.Errorf("%s names no section of a document", name)
		}
	}
}

// TestProtocolSections checks that the sections exist which comments in Go quote.
func TestProtocolSections(t *testing.T) {
	count := 0
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			count += checkQuotedSections(t, strings.TrimPrefix(filepath.ToSlash(path), "../"))
		}
		return err
	})
	if err != nil || count < 50 {
		t.Errorf("%d sections are quoted, %v", count, err)
	}
}

// TestProtocolCapabilities checks that every capability has a heading in EXTENSIONS.md, or is in
// the table of PROTOCOL.md that has those of released clients.
func TestProtocolCapabilities(t *testing.T) {
	headings := ""
	for _, m := range markdownHeading.FindAllStringSubmatch(readFromRoot(t, "EXTENSIONS.md"), -1) {
		headings += m[1] + "\n"
	}
	released := readFromRoot(t, "PROTOCOL.md")
	for _, field := range reflect.VisibleFields(reflect.TypeFor[protocol.Capabilities]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !regexp.MustCompile(`\b`+name+`\b`).MatchString(headings) && !strings.Contains(released, "`"+name+"`") {
			t.Errorf("neither PROTOCOL.md nor EXTENSIONS.md describes the capability %s", name)
		}
	}
}

// checkQuotedSections counts the sections of documents that the file quotes, as in
// `PROTOCOL.md, "Handshake"`, and fails the test for those that do not exist.
func checkQuotedSections(t *testing.T, file string) (count int) {
	t.Helper()
	text := commentMark.ReplaceAllString(readFromRoot(t, file), " ")
	for _, m := range quotedSections.FindAllStringSubmatch(text, -1) {
		exists := map[string]bool{}
		for _, heading := range markdownHeading.FindAllStringSubmatch(readFromRoot(t, m[1]), -1) {
			exists[heading[1]] = true
		}
		for _, section := range quoted.FindAllStringSubmatch(m[2], -1) {
			count++
			if !exists[section[1]] {
				t.Errorf("%s names the section %q, which %s does not have", file, section[1], m[1])
			}
		}
	}
	return count
}

// readFromRoot reads a file by its path in the repository.
func readFromRoot(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
