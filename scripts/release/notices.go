package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// vendored are licences of what the repository holds of others and embeds into the program.
var vendored = []struct{ name, licence string }{
	{"xterm.js", "internal/web/page/vendor/xterm.LICENSE.txt"},
}

// noticesOf returns the name of the file with the notices of a program.
func noticesOf(program string) string { return "THIRD_PARTY_NOTICES." + program + ".txt" }

// notices returns the copyright notices and licences of everything that a program is made of, and
// writes them next to it, for people who copy only the program. Anyone who redistributes the
// program must redistribute the notices as well.
func (r *release) notices(binary string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s is built from the following software of others. Each has its own licence.\n", filepath.Base(binary))
	goRoot, err := output(exec.Command(r.goTool, "env", "GOROOT"))
	if err != nil {
		return nil, err
	}
	if err := addNotices(&text, "The Go standard library and runtime", goRoot, topLevel); err != nil {
		return nil, err
	}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		if dep.Sum == "" { // a directory of this repository
			continue
		}
		answer, err := output(exec.Command(r.goTool, "mod", "download", "-json", dep.Path+"@"+dep.Version))
		if err != nil {
			return nil, err
		}
		var module struct{ Dir string }
		if err := json.Unmarshal([]byte(answer), &module); err != nil {
			return nil, fmt.Errorf("find the files of %s: %w", dep.Path, err)
		}
		if err := addNotices(&text, dep.Path+" "+dep.Version, module.Dir, everywhere); err != nil {
			return nil, err
		}
	}
	for _, v := range vendored {
		if err := addNotice(&text, v.name, v.licence); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), writeFile(binary+".notices.txt", text.Bytes(), 0o644)
}

// Where licences are looked for below a directory. Modules also hold code of others, with
// licences of its own.
const (
	topLevel   = false
	everywhere = true
)

// addNotices adds each licence and notice in a directory. Without one the software may not
// be passed on.
func addNotices(text *bytes.Buffer, name, dir string, deep bool) error {
	found := false
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != dir && (!deep || entry.Name() == "testdata"):
			return fs.SkipDir
		case !entry.Type().IsRegular() || !isNotice(entry.Name()):
			return nil
		}
		found = true
		title := name
		if below, err := filepath.Rel(dir, filepath.Dir(path)); err == nil && below != "." {
			title += ", " + filepath.ToSlash(below)
		}
		return addNotice(text, title, path)
	})
	if err == nil && !found {
		err = fmt.Errorf("%s has no licence in %s, so it cannot be part of a release", name, dir)
	}
	return err
}

// isNotice reports whether a file of this name holds a licence or a notice.
func isNotice(name string) bool {
	name, ext := strings.ToUpper(name), strings.ToLower(filepath.Ext(name))
	if ext != "" && ext != ".txt" && ext != ".md" && !strings.HasPrefix(name, "LICENSE.") {
		return false
	}
	for _, prefix := range []string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func addNotice(text *bytes.Buffer, title, path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(text, "\n%s\n%s (%s)\n\n%s\n", strings.Repeat("=", 80), title, filepath.Base(path), bytes.TrimSpace(content))
	return nil
}
