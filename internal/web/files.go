package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

//go:embed page
var embedded embed.FS

// index is the document, and files are what it loads. readFiles fills them.
var (
	index string
	files = make(map[string]file)
)

// file is what the page loads from a path below root.
type file struct {
	text, etag, kind string
}

// readFiles reads the page, which takes more memory than a program that serves none should
// have.
var readFiles = sync.OnceFunc(func() {
	err := fs.WalkDir(embedded, "page", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		f := file{string(text), `"` + hex.EncodeToString(sum[:8]) + `"`, kindOf(name)}
		if name = strings.TrimPrefix(name, "page/"); name == "index.html" {
			index = f.text
		} else {
			files[name] = f
		}
		return nil
	})
	if err != nil {
		panic(err) // of a file in the program itself
	}
})

// kindOf does not ask the system, which knows some types and not others.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/plain; charset=utf-8"
}

// slowest is how long a file may take to arrive.
const slowest = time.Minute

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	// If the connection has no deadline, none is needed.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(slowest))
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-cache") // which asks each time
	h.Set("ETag", f.etag)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(f.text))
}
