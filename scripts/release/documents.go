package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// documents returns what is the same on every platform: man pages, completions and texts,
// at the places below a prefix where programs look for them.
func (r *release) documents() (files []file, err error) {
	for _, program := range programs {
		// The program that writes them runs here.
		tool := filepath.Join(r.scratch, program.name+"-man-pages")
		if err := r.compile(tool, platform{runtime.GOOS, runtime.GOARCH}, program.module, program.name, "-tags", "manpages"); err != nil {
			return nil, err
		}
		pages, err := r.manPages(tool)
		if err != nil {
			return nil, err
		}
		files = append(files, pages...)
		for shell, name := range map[string]string{
			"bash":       "share/bash-completion/completions/" + program.name,
			"zsh":        "share/zsh/site-functions/_" + program.name,
			"fish":       "share/fish/vendor_completions.d/" + program.name + ".fish",
			"powershell": "share/powershell/" + program.name + ".ps1",
		} {
			script, err := output(exec.Command(tool, "completion", shell))
			if err != nil {
				return nil, err
			}
			files = append(files, file{name, 0o644, []byte(script + "\n")})
		}
	}
	for _, name := range []string{"LICENSE", "README.md", "SECURITY.md"} {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files = append(files, file{"share/doc/exec-server/" + name, 0o644, content})
	}
	return files, nil
}

func (r *release) manPages(tool string) ([]file, error) {
	dir := tool + ".d"
	command := exec.Command(tool, "man-pages", dir)
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+r.epoch())
	if _, err := output(command); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, file{"share/man/man1/" + entry.Name() + ".gz", 0o644, compressed(content)})
	}
	return files, nil
}

// installed returns the documents that have a place below the prefix of a Unix system.
func installed(docs []file) []file {
	var files []file
	for _, f := range docs {
		if !strings.HasPrefix(f.name, "share/powershell/") {
			files = append(files, f)
		}
	}
	return files
}

// flat returns the documents for Windows, which has no such places, and no man.
func flat(docs []file) []file {
	var files []file
	for _, f := range docs {
		if strings.HasPrefix(f.name, "share/powershell/") || strings.HasPrefix(f.name, "share/doc/") {
			files = append(files, file{path.Base(f.name), f.mode, f.content})
		}
	}
	return files
}

// compressed is gzip -9n.
func compressed(content []byte) []byte {
	var buffer bytes.Buffer
	w, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // the level is valid, and a buffer takes everything
	}
	return buffer.Bytes()
}
