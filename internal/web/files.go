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

// index is the document, and files are those that it loads. readFiles fills them.
var (
	index string
	files = make(map[string]file)
)

// file is a file that the page loads from a path below root.
type file struct {
	text, etag, kind string
}

// readFiles reads the page when it is first needed, because it takes memory.
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

// kindOf returns the media type of a file. It does not depend on the types that the system
// knows.
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

// writeTimeout bounds how long a file may take to send.
const writeTimeout = time.Minute

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	// If the connection has no deadline, none is needed.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-cache") // revalidates each time
	h.Set("ETag", f.etag)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(f.text))
}
