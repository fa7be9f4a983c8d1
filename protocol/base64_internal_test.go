package protocol

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestBase64Refusals(t *testing.T) {
	for _, in := range []string{"!!!!", "aGk", "a", "aGk=\n", "aG\nk=", "ab-_", "aG==aG==", "aGl=", "===="} {
		got, err := appendDecodedBase64([]byte("keep"), []byte(in))
		if _, ok := err.(base64.CorruptInputError); !ok {
			t.Errorf("appendDecodedBase64(%q): error %v", in, err)
		}
		if string(got) != "keep" {
			t.Errorf("appendDecodedBase64(%q) changed the buffer to %q", in, got)
		}
	}
}

// checkBase64 holds the codec against encoding/base64: what one accepts the other
// accepts, but for line breaks, with the same bytes.
func checkBase64(t *testing.T, in []byte) {
	t.Helper()
	encoded := AppendBase64([]byte("x"), in)
	if want := "x" + base64.StdEncoding.EncodeToString(in); string(encoded) != want {
		t.Fatalf("AppendBase64(%q) = %q, want %q", in, encoded, want)
	}
	if len(encoded)-1 != Base64Len(len(in)) {
		t.Fatalf("Base64Len(%d) = %d, want %d", len(in), Base64Len(len(in)), len(encoded)-1)
	}
	decoded, err := appendDecodedBase64([]byte("x"), encoded[1:])
	if err != nil || string(decoded) != "x"+string(in) {
		t.Fatalf("round trip of %q: %q, %v", in, decoded, err)
	}
	if decoded, err = decodeBase64InPlace(encoded[1:]); err != nil || string(decoded) != string(in) {
		t.Fatalf("round trip in place of %q: %q, %v", in, decoded, err)
	}
	got, err := appendDecodedBase64(nil, in)
	want, wantErr := base64.StdEncoding.Strict().DecodeString(string(in))
	if strings.ContainsAny(string(in), "\r\n") {
		wantErr = base64.CorruptInputError(0)
	}
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("appendDecodedBase64(%q): error %v, the standard library says %v", in, err, wantErr)
	}
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("appendDecodedBase64(%q) = %q, want %q", in, got, want)
	}
	there, thereErr := decodeBase64InPlace(bytes.Clone(in))
	if fmt.Sprint(thereErr) != fmt.Sprint(err) {
		t.Fatalf("decodeBase64InPlace(%q): error %v, appendDecodedBase64 says %v", in, thereErr, err)
	}
	if err == nil && !bytes.Equal(there, want) {
		t.Fatalf("decodeBase64InPlace(%q) = %q, want %q", in, there, want)
	}
}

// TestBase64Lengths takes every short length, at every alignment.
func TestBase64Lengths(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		in := make([]byte, n+32)
		for i := range in {
			in[i] = byte(random.Uint32())
		}
		checkBase64(t, in[n%32:][:n])
	}
}

// TestBase64EveryByte puts every byte at every place of a text, and at places
// around the blocks of a long one.
func TestBase64EveryByte(t *testing.T) {
	put := func(length, i, c int) {
		text := bytes.Repeat([]byte("azAZ09+/"), length/8+1)[:length]
		text[i] = byte(c)
		checkBase64(t, text)
	}
	for c := range 256 {
		for i := range 100 {
			put(100, i, c)
		}
		const length = 2*base64Block + 4
		for _, i := range []int{0, 33, base64Block - 1, base64Block, 2*base64Block - 1, 2 * base64Block, length - 1} {
			put(length, i, c)
		}
	}
}

func FuzzBase64(f *testing.F) {
	for _, s := range []string{"", "aGk=", "aGl=", "aGkx", "a", "====", "aGk=\r\n", "ab-_", "AAAA AAAA"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		checkBase64(t, in)
		if len(in) > 0 {
			checkBase64(t, bytes.Repeat(in, 1+200/len(in)))
		}
		checkBase64(t, append(bytes.Repeat([]byte("azAZ09+/"), 16), in...))
	})
}

func BenchmarkEncodeBase64(b *testing.B) {
	src, dst := make([]byte, 64<<10), make([]byte, 0, 100<<10)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		AppendBase64(dst, src)
	}
}

func BenchmarkDecodeBase64(b *testing.B) {
	src, dst := AppendBase64(nil, make([]byte, 64<<10)), make([]byte, 0, 100<<10)
	b.SetBytes(64 << 10)
	for b.Loop() {
		if _, err := appendDecodedBase64(dst, src); err != nil {
			b.Fatal(err)
		}
	}
}
