//go:build unix

package client_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestCompression counts what goes over the wire, and checks what arrives.
func TestCompression(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("a line of output that is like every other line\n", 100_000)
	for _, k := range []struct {
		name   string
		how    client.Compression
		atMost int64 // bytes in either direction
	}{
		{"always", client.CompressAlways, int64(len(text)) / 5},
		{"never", client.CompressNever, int64(len(text)) * 11 / 10},
		{"over loopback", client.CompressRemote, int64(len(text)) * 11 / 10},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newProxy(t, serveWebSocket(t, nil))
			env, err := client.Dial(background(t), p.url, &client.Options{Compression: k.how})
			env = opened(t, env, err)
			var out bytes.Buffer
			c := child(env, "cat")
			c.Stdin, c.Stdout = io.MultiReader(strings.NewReader(text)), &out
			if err := c.Run(); err != nil {
				t.Fatal(err)
			}
			if out.String() != text {
				t.Errorf("%d bytes came back of %d", out.Len(), len(text))
			}
			files := env.FS(t.TempDir())
			if err := files.WriteFile("file", []byte(text[:1<<20])); err != nil {
				t.Fatal(err)
			}
			if got, err := files.ReadFile("file"); err != nil || string(got) != text[:1<<20] {
				t.Errorf("the file came back as %d bytes, %v", len(got), err)
			}
			for way, n := range map[string]int64{"to": p.toServer.Load(), "from": p.fromServer.Load()} {
				least := int64(len(text))
				if k.how == client.CompressAlways {
					least = 0
				}
				if most := k.atMost + 2<<20*btoi(k.how != client.CompressAlways); n > most || n < least {
					t.Errorf("%d bytes %s the server, want %d to %d", n, way, least, most)
				}
			}
		})
	}
}

func btoi(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// TestCompressionAcrossCuts compresses in a bad network.
func TestCompressionAcrossCuts(t *testing.T) {
	t.Parallel()
	p := newProxy(t, serveWebSocket(t, nil))
	env, err := client.Dial(background(t), p.url, &client.Options{Compression: client.CompressAlways})
	env = opened(t, env, err)
	const size = 4 << 20
	p.cutEvery(size/100, 20)
	var out patternChecker
	c := child(env, "cat")
	c.Stdin, c.Stdout = io.MultiReader(bytes.NewReader(testkit.Pattern(size))), &out
	if err := c.Run(); err != nil {
		t.Error(err)
	}
	if out.n != size {
		t.Errorf("%d bytes of %d", out.n, size)
	}
	if p.cutCount() < 5 {
		t.Errorf("only %d cuts", p.cutCount())
	}
}
