package rpc_test

import (
	"bytes"
	"crypto/rand"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"execserver/internal/rpc"
)

const limit = 64 << 20

func message(content []byte) []byte { return append([]byte{0}, content...) }

func TestRoundTrip(t *testing.T) {
	var s rpc.Compressor
	for _, n := range []int{1 << 10, 64 << 10, rpc.MaxCompressible - 1} {
		msg := message(bytes.Repeat([]byte("a line of text\n"), n/15+1)[:n])
		small, ok := s.Append(nil, msg)
		if !ok || len(small) > n/4 || !rpc.IsCompressed(small) {
			t.Fatalf("%d bytes became %d, %t", len(msg), len(small), ok)
		}
		got, err := rpc.Decompress([]byte("before"), small, limit)
		if err != nil || !bytes.Equal(got, append([]byte("before"), msg...)) {
			t.Errorf("%d bytes came back as %d: %v", len(msg), len(got), err)
		}
	}
}

// TestLeavesAlone sends what is not worth it: little, much, and noise, which costs an
// attempt only now and then.
func TestLeavesAlone(t *testing.T) {
	var s rpc.Compressor
	for _, n := range []int{100, rpc.MaxCompressible} {
		if _, ok := s.Append(nil, message(make([]byte, n))); ok {
			t.Errorf("%d bytes were compressed", n)
		}
	}
	noise := message(make([]byte, 64<<10))
	_, _ = rand.Read(noise[1:])
	attempts := 0
	for range 1000 {
		b, ok := s.Append(nil, noise)
		if ok {
			t.Fatal("noise was compressed")
		}
		if b != nil {
			attempts++
		}
	}
	if attempts < 5 || attempts > 30 {
		t.Errorf("%d attempts", attempts)
	}
	text := message(make([]byte, 64<<10))
	for range 100 {
		if _, ok := s.Append(nil, text); ok {
			return
		}
	}
	t.Error("noise has ended compression for good")
}

func TestExpandRefuses(t *testing.T) {
	encode := func(content []byte, options ...zstd.EOption) []byte {
		e, err := zstd.NewWriter(nil, options...)
		if err != nil {
			t.Fatal(err)
		}
		return e.EncodeAll(content, []byte{1})
	}
	var stream bytes.Buffer
	w, err := zstd.NewWriter(&stream)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(make([]byte, 1<<20))
	_ = w.Flush() // so that the header has no length
	_ = w.Close()
	small := encode(make([]byte, 1000))
	bomb := encode(make([]byte, 200<<20))
	empty := encode(nil, zstd.WithZeroFrames(true), zstd.WithSingleSegment(true))
	skippable := []byte("\x50\x2a\x4d\x18\x04\x00\x00\x00abcd")
	hollow := append(bytes.Clone(small), bytes.Repeat(empty[1:], 30<<20/len(empty))...)
	for name, c := range map[string]struct {
		msg   []byte
		limit int64
		text  string
	}{
		"empty":             {[]byte{1}, limit, "not zstd"},
		"noise":             {[]byte("\x01no zstd at all"), limit, "not zstd"},
		"cut off":           {small[:len(small)-2], limit, "one frame"},
		"corrupt":           {append(bytes.Clone(small[:len(small)-4]), 1, 2, 3, 4), limit, "cannot be decoded"},
		"no length":         {append([]byte{1}, stream.Bytes()...), limit, "how long"},
		"bomb":              {bomb, limit, "exceeds the limit of 2097152 bytes"},
		"hollow":            {hollow, limit, "the limit is 2129920 bytes"},
		"above the limit":   {small, 1000, "exceeds the limit of 999 bytes"},
		"two frames":        {append(bytes.Clone(small), small[1:]...), limit, "one frame"},
		"an empty frame":    {append(bytes.Clone(small), empty[1:]...), limit, "one frame"},
		"a skippable frame": {append(append([]byte{1}, skippable...), small[1:]...), limit, "how long"},
		"one at the end":    {append(bytes.Clone(small), skippable...), limit, "one frame"},
		"bytes at the end":  {append(bytes.Clone(small), 0), limit, "one frame"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := rpc.Decompress(nil, c.msg, c.limit)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
			t.Errorf("%s costs %d bytes", name, used)
		}
	}
}

// TestExpandBoundsBlocks sends frames of many small blocks: each has tables of its own, so
// tens of thousands of them cost as much as a hundred messages.
func TestExpandBoundsBlocks(t *testing.T) {
	for _, c := range []struct {
		blocks, each int // how many, and how much content each has
		ok           bool
	}{
		{1, 0, true},
		{64, 0, true},
		{65, 0, false},
		{128, 256, true},
		{129, 256, false},
		{3000, 669, true}, // as an encoder that splits its blocks makes them at most
		{49_000, 40, false},
	} {
		size := c.blocks * c.each
		msg := []byte{1, 0x28, 0xb5, 0x2f, 0xfd, 0xa0, byte(size), byte(size >> 8), byte(size >> 16), byte(size >> 24)}
		for i := range c.blocks {
			block := c.each << 3 // content as it is
			if i == c.blocks-1 {
				block |= 1
			}
			msg = append(msg, byte(block), byte(block>>8), byte(block>>16))
			msg = append(msg, make([]byte, c.each)...)
		}
		got, err := rpc.Decompress(nil, msg, limit)
		switch {
		case c.ok && (err != nil || len(got) != 1+size):
			t.Errorf("%d blocks of %d bytes became %d bytes: %v", c.blocks, c.each, len(got), err)
		case !c.ok && (err == nil || !strings.Contains(err.Error(), "too many blocks")):
			t.Errorf("%d blocks of %d bytes: %v", c.blocks, c.each, err)
		}
	}
}

func FuzzExpand(f *testing.F) {
	var s rpc.Compressor
	small, _ := s.Append(nil, message(bytes.Repeat([]byte("text\n"), 1000)))
	f.Add(small)
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, msg []byte) {
		if len(msg) == 0 {
			return
		}
		got, err := rpc.Decompress(nil, msg, limit)
		if err == nil && (len(got) > rpc.MaxCompressible+1 || got[0] != 0) {
			t.Fatalf("%q became %d bytes", msg, len(got))
		}
	})
}
