package base64

import (
	"bytes"
	stdbase64 "encoding/base64"
	"strings"
	"testing"
)

func TestErrorTexts(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"!!!!", "Invalid symbol 33, offset 0."},
		{"aGk", "Invalid padding"},
		{"a", "Invalid padding"},
		{"aGk=\n", "Invalid symbol 10, offset 4."},
		{"aG\nk=", "Invalid symbol 10, offset 2."},
		{"ab-_", "Invalid symbol 45, offset 2."},
		{"aG==aG==", "Invalid symbol 61, offset 2."},
		{"aGl=", "Invalid last symbol 108, offset 2."},
		{"====", "Invalid padding"},
	} {
		got, err := AppendDecode([]byte("keep"), []byte(test.in))
		if err == nil || err.Error() != test.want {
			t.Errorf("AppendDecode(%q): error %v, want %q", test.in, err, test.want)
		}
		if string(got) != "keep" {
			t.Errorf("AppendDecode(%q) changed the buffer to %q", test.in, got)
		}
	}
}

// FuzzAgainstStandardLibrary holds the codec against encoding/base64: what one
// accepts the other accepts, but for line breaks, with the same bytes.
func FuzzAgainstStandardLibrary(f *testing.F) {
	for _, s := range []string{"", "aGk=", "aGl=", "aGkx", "a", "====", "aGk=\r\n", "ab-_", "AAAA AAAA"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		encoded := AppendEncode([]byte("x"), in)
		if want := "x" + stdbase64.StdEncoding.EncodeToString(in); string(encoded) != want {
			t.Fatalf("AppendEncode(%q) = %q, want %q", in, encoded, want)
		}
		if len(encoded)-1 != EncodedLen(len(in)) {
			t.Fatalf("EncodedLen(%d) = %d, want %d", len(in), EncodedLen(len(in)), len(encoded)-1)
		}
		decoded, err := AppendDecode(nil, encoded[1:])
		if err != nil || !bytes.Equal(decoded, in) {
			t.Fatalf("round trip of %q: %q, %v", in, decoded, err)
		}
		got, err := AppendDecode(nil, in)
		want, wantErr := stdbase64.StdEncoding.Strict().DecodeString(string(in))
		if strings.ContainsAny(string(in), "\r\n") {
			wantErr = &Error{"line break"}
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("AppendDecode(%q): error %v, the standard library says %v", in, err, wantErr)
		}
		if err == nil && !bytes.Equal(got, want) {
			t.Fatalf("AppendDecode(%q) = %q, want %q", in, got, want)
		}
	})
}
