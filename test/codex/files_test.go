//go:build unix

package codex

import (
	"bytes"
	"encoding/base64"
	"errors"
	"image"
	"image/color"
	"image/png"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"execserver/internal/testkit/responses"
)

func TestFiles(t *testing.T) {
	play(t, []scenario{
		{
			name: "patch",
			far:  true,
			prepare: func(t *testing.T, r *run) {
				r.serve(t, "old.txt", []byte("first\nbefore\nlast\n"))
				r.serve(t, "gone.txt", []byte("gone\n"))
				r.serve(t, "moved.txt", []byte("one\ntwo\n"))
			},
			model: responses.Script(responses.Say(responses.CustomCall("patch", "apply_patch", `*** Begin Patch
*** Add File: new/folder/added.txt
+added
*** Update File: old.txt
@@
 first
-before
+after
 last
*** Delete File: gone.txt
*** Update File: moved.txt
*** Move to: elsewhere/moved.txt
@@
 one
-two
+2
*** End Patch
`))),
			check: func(t *testing.T, r *run) {
				if got := r.result(t, "patch").text; !strings.Contains(got, "Success") {
					t.Errorf("the model was told: %s", abbreviate(got))
				}
				for name, want := range map[string]string{
					"new/folder/added.txt": "added\n", "old.txt": "first\nafter\nlast\n", "elsewhere/moved.txt": "one\n2\n",
				} {
					if got, err := os.ReadFile(r.served(name)); string(got) != want {
						t.Errorf("%s holds %q, %v; want %q", name, got, err, want)
					}
				}
				for _, name := range []string{"gone.txt", "moved.txt"} {
					if _, err := os.Stat(r.served(name)); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("%s is still there: %v", name, err)
					}
				}
				r.wantClientIdle(t)
			},
		},
		{
			// The server answers that it has replaced the file, which no released client knows.
			name:     "patch of a running program",
			far:      true,
			onlyOurs: true,
			prepare: func(t *testing.T, r *run) {
				program := exec.Command(r.served("program"))
				// Of a file that this program wrote, a child of another test could have a descriptor.
				if out, err := exec.Command("cp", lookPath(t, "cat"), program.Path).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				stdin, err := program.StdinPipe()
				if err == nil {
					err = program.Start()
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = errors.Join(stdin.Close(), program.Wait()) })
			},
			model: responses.Script(responses.Say(responses.CustomCall("patch", "apply_patch", `*** Begin Patch
*** Add File: program
+#!/bin/sh
*** End Patch
`))),
			check: func(t *testing.T, r *run) {
				if got := r.result(t, "patch").text; !strings.Contains(got, "Success") {
					t.Errorf("the model was told: %s", abbreviate(got))
				}
				got, err := os.ReadFile(r.served("program"))
				info, statErr := os.Stat(r.served("program"))
				if string(got) != "#!/bin/sh\n" || err != nil || statErr != nil || info.Mode() != 0o755 {
					t.Errorf("the program holds %d bytes, %v: %v, %v", len(got), info, err, statErr)
				}
			},
		},
		{
			// The model is told why a patch does not apply, and nothing is changed.
			name:    "patch that does not apply",
			far:     true,
			prepare: func(t *testing.T, r *run) { r.serve(t, "f.txt", []byte("something else\n")) },
			model: responses.Script(responses.Say(responses.CustomCall("patch", "apply_patch", `*** Begin Patch
*** Update File: f.txt
@@
-before
+after
*** End Patch
`))),
			check: func(t *testing.T, r *run) {
				if got := r.result(t, "patch").text; !strings.Contains(got, "f.txt") || strings.Contains(got, "Success") {
					t.Errorf("the model was told: %s", abbreviate(got))
				}
				if got, err := os.ReadFile(r.served("f.txt")); string(got) != "something else\n" {
					t.Errorf("the file holds %q, %v", got, err)
				}
			},
		},
		{
			name:    "image",
			far:     true,
			prepare: func(t *testing.T, r *run) { r.serve(t, "image.png", picture(t, 64, png.DefaultCompression)) },
			model:   responses.Script(viewImage),
			check:   func(t *testing.T, r *run) { r.wantImage(t, 64) },
		},
		{
			// The client takes no frame above 16 MiB, and no message above 64 MiB.
			name: "image of 46 MB",
			only: func(c client) bool { return c.version != oldest },
			far:  true,
			prepare: func(t *testing.T, r *run) {
				content := picture(t, 3920, png.NoCompression)
				if len(content) < 46_000_000 || len(content) > 47_000_000 {
					t.Fatalf("the image has %d bytes", len(content))
				}
				r.serve(t, "image.png", content)
			},
			model: responses.Script(viewImage),
			check: func(t *testing.T, r *run) { r.wantImage(t, 0) },
		},
		{
			name: "AGENTS.md",
			far:  true,
			prepare: func(t *testing.T, r *run) {
				r.serve(t, "AGENTS.md", []byte("Always whistle while you work, says the server's folder.\n"))
			},
			model: responses.Script(),
			check: func(t *testing.T, r *run) { r.wantTold(t, "Always whistle while you work") },
		},
		{
			name: "skill",
			far:  true,
			prepare: func(t *testing.T, r *run) {
				r.serve(t, ".git/HEAD", []byte("ref: refs/heads/main\n"))
				r.serve(t, ".agents/skills/juggling/SKILL.md",
					[]byte("---\nname: juggling\ndescription: Keeps five balls in the air.\n---\n\nThrow, then catch.\n"))
			},
			model: responses.Script(),
			check: func(t *testing.T, r *run) { r.wantTold(t, "Keeps five balls in the air") },
		},
	})
}

func lookPath(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// viewImage is a step that looks at image.png.
func viewImage(*responses.Request) []responses.Item {
	return []responses.Item{responses.Call("view", "view_image", object{"path": "image.png"})}
}

// picture is a PNG of colours that do not compress.
func picture(t *testing.T, size int, compression png.CompressionLevel) []byte {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	img := image.NewNRGBA(image.Rect(0, 0, size, size))
	for y := range size {
		for x := range size {
			n := random.Uint32()
			img.SetNRGBA(x, y, color.NRGBA{uint8(n), uint8(n >> 8), uint8(n >> 16), 255})
		}
	}
	var b bytes.Buffer
	encoder := png.Encoder{CompressionLevel: compression}
	if err := encoder.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// wantImage checks that the model was given an image, of that many pixels each way
// unless that is 0.
func (r *run) wantImage(t *testing.T, size int) {
	t.Helper()
	item, ok := r.model.Output("view")
	if !ok {
		t.Fatal("the model was told nothing")
	}
	for _, part := range item.Parts() {
		_, encoded, ok := strings.Cut(part.ImageURL, ";base64,")
		if !ok {
			continue
		}
		data, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		config, kind, err := image.DecodeConfig(bytes.NewReader(data))
		if err != nil || size > 0 && (config.Width != size || config.Height != size) {
			t.Errorf("a %s image of %d x %d, %v", kind, config.Width, config.Height, err)
		}
		return
	}
	t.Errorf("the model was given no image: %s", abbreviate(string(item.Output)))
}

// wantTold checks that the first request to the model has a text.
func (r *run) wantTold(t *testing.T, text string) {
	t.Helper()
	requests := r.model.Requests()
	if len(requests) == 0 || !bytes.Contains(requests[0].Body, []byte(text)) {
		t.Errorf("the model was not told %q", text)
	}
}

// wantClientIdle checks that a client whose server has a work folder of its own made
// nothing in its own.
func (r *run) wantClientIdle(t *testing.T) {
	t.Helper()
	if !r.far {
		return
	}
	if entries, err := os.ReadDir(r.work); err != nil || len(entries) > 0 {
		t.Errorf("in the client's folder: %v, %v", entries, err)
	}
}
