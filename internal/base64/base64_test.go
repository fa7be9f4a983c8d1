package base64

import (
	"bytes"
	stdbase64 "encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestRefusals(t *testing.T) {
	for _, in := range []string{"!!!!", "aGk", "a", "aGk=\n", "aG\nk=", "ab-_", "aG==aG==", "aGl=", "===="} {
		got, err := AppendDecode([]byte("keep"), []byte(in))
		if _, ok := err.(stdbase64.CorruptInputError); !ok {
			t.Errorf("AppendDecode(%q): error %v", in, err)
		}
		if string(got) != "keep" {
			t.Errorf("AppendDecode(%q) changed the buffer to %q", in, got)
		}
	}
}

// check holds the codec against encoding/base64: what one accepts the other
// accepts, but for line breaks, with the same bytes.
func check(t *testing.T, in []byte) {
	t.Helper()
	encoded := AppendEncode([]byte("x"), in)
	if want := "x" + stdbase64.StdEncoding.EncodeToString(in); string(encoded) != want {
		t.Fatalf("AppendEncode(%q) = %q, want %q", in, encoded, want)
	}
	if len(encoded)-1 != EncodedLen(len(in)) {
		t.Fatalf("EncodedLen(%d) = %d, want %d", len(in), EncodedLen(len(in)), len(encoded)-1)
	}
	decoded, err := AppendDecode([]byte("x"), encoded[1:])
	if err != nil || string(decoded) != "x"+string(in) {
		t.Fatalf("round trip of %q: %q, %v", in, decoded, err)
	}
	if decoded, err = Decode(encoded[1:]); err != nil || string(decoded) != string(in) {
		t.Fatalf("round trip in place of %q: %q, %v", in, decoded, err)
	}
	got, err := AppendDecode(nil, in)
	want, wantErr := stdbase64.StdEncoding.Strict().DecodeString(string(in))
	if strings.ContainsAny(string(in), "\r\n") {
		wantErr = stdbase64.CorruptInputError(0)
	}
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("AppendDecode(%q): error %v, the standard library says %v", in, err, wantErr)
	}
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("AppendDecode(%q) = %q, want %q", in, got, want)
	}
	there, thereErr := Decode(bytes.Clone(in))
	if fmt.Sprint(thereErr) != fmt.Sprint(err) {
		t.Fatalf("Decode(%q): error %v, AppendDecode says %v", in, thereErr, err)
	}
	if err == nil && !bytes.Equal(there, want) {
		t.Fatalf("Decode(%q) = %q, want %q", in, there, want)
	}
}

// TestLengths takes every short length, at every alignment.
func TestLengths(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		in := make([]byte, n+32)
		for i := range in {
			in[i] = byte(random.Uint32())
		}
		check(t, in[n%32:][:n])
	}
}

// TestEveryByteEverywhere puts every byte at every place of a text, and at places
// around the blocks of a long one.
func TestEveryByteEverywhere(t *testing.T) {
	put := func(length, i, c int) {
		text := bytes.Repeat([]byte("azAZ09+/"), length/8+1)[:length]
		text[i] = byte(c)
		check(t, text)
	}
	for c := range 256 {
		for i := range 100 {
			put(100, i, c)
		}
		const length = 2*blockSymbols + 4
		for _, i := range []int{0, 33, blockSymbols - 1, blockSymbols, 2*blockSymbols - 1, 2 * blockSymbols, length - 1} {
			put(length, i, c)
		}
	}
}

func FuzzAgainstStandardLibrary(f *testing.F) {
	for _, s := range []string{"", "aGk=", "aGl=", "aGkx", "a", "====", "aGk=\r\n", "ab-_", "AAAA AAAA"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		check(t, in)
		if len(in) > 0 {
			check(t, bytes.Repeat(in, 1+200/len(in)))
		}
		check(t, append(bytes.Repeat([]byte("azAZ09+/"), 16), in...))
	})
}

func BenchmarkEncode(b *testing.B) {
	src, dst := make([]byte, 64<<10), make([]byte, 0, 100<<10)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		AppendEncode(dst, src)
	}
}

func BenchmarkDecode(b *testing.B) {
	src, dst := AppendEncode(nil, make([]byte, 64<<10)), make([]byte, 0, 100<<10)
	b.SetBytes(64 << 10)
	for b.Loop() {
		if _, err := AppendDecode(dst, src); err != nil {
			b.Fatal(err)
		}
	}
}
