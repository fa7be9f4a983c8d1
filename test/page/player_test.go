package page

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestPlayerOfAsciinema plays recordings in asciinema's own player: of a terminal whose
// size changes and of pipes, whole, and cut where a crash may have cut them. What the
// server leaves after a crash ends with a whole line.
func TestPlayerOfAsciinema(t *testing.T) {
	out, err := exec.Command(filepath.Join("..", "..", "scripts", "install-asciinema-player")).Output()
	if err != nil {
		t.Fatalf("install asciinema's player: %v", err)
	}
	recordings := filepath.Join(t.TempDir(), "recordings")
	s := serveWith(t, "--record", recordings)
	s.start("terminal", true, "sh", "-c", "stty rows 10 cols 40; printf '\\033[31mred\\033[m \\360\\237\\230\\200 \\377 text\\n'; sleep 0.3; echo the end; exit 5")
	s.start("pipes", false, "sh", "-c", "echo to stdout; echo to stderr >&2; echo the end; kill -9 $$")
	var casts []string
	for end := time.Now().Add(testkit.Patience); len(casts) < 2; {
		if casts, err = filepath.Glob(filepath.Join(recordings, "*.cast")); err != nil || time.Now().After(end) {
			t.Fatalf("the recordings are %q, %v", casts, err)
		}
		time.Sleep(20 * time.Millisecond) // nothing says when a recording is complete
	}
	files := map[string][]byte{}
	for _, cast := range casts {
		text, err := os.ReadFile(cast)
		if err != nil {
			t.Fatal(err)
		}
		kind := "terminal"
		if bytes.Contains(text, []byte("to stdout")) {
			kind = "pipes"
		}
		files[kind] = text
		lines := bytes.SplitAfter(text, []byte("\n"))
		for n := 1; n < len(lines); n++ {
			files[fmt.Sprintf("%s, %d lines", kind, n)] = bytes.Join(lines[:n], nil)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/player/", http.StripPrefix("/player/", http.FileServer(http.Dir(strings.TrimSpace(string(out))))))
	mux.HandleFunc("/cast", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(files[r.URL.Query().Get("name")]) })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!doctype html><link rel="stylesheet" href="/player/asciinema-player.css"><script src="/player/asciinema-player.min.js"></script><div id="player"></div>`)
	})
	site := httptest.NewServer(mux)
	defer site.Close()
	b := browse(t)
	for name, text := range files {
		b.open(site.URL)
		value[bool](b, fmt.Sprintf(`(window.player = AsciinemaPlayer.create("/cast?name=" + encodeURIComponent(%q), document.querySelector("#player"), { autoPlay: true, speed: 20, fit: false }),
			player.addEventListener("ended", () => (window.ended = true)), true)`, name))
		output := bytes.Count(text, []byte(`, "o", `)) // one that shows nothing need not end
		if output == 0 {
			b.until(name+" is loaded", `document.querySelector(".ap-player")`)
			continue
		}
		b.until(name+" has ended", `window.ended || document.querySelector(".ap-overlay-error")`)
		if value[bool](b, `Boolean(document.querySelector(".ap-overlay-error"))`) {
			t.Errorf("the player cannot play %s", name)
		}
		if bytes.Contains(text, []byte(`the end\r\n"]`)) {
			b.shows(".ap-player", "the end") // it may be drawn after the player says that it has ended
		}
	}
	b.picture("16-asciinema")
}
