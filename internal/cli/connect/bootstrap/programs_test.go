package bootstrap

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"runtime"
	"testing"
)

// TestHeaders reads the headers of this program, as package debug/elf does, and of others that
// are cut off, or lie.
func TestHeaders(t *testing.T) {
	t.Parallel()
	if self, err := os.Executable(); err == nil && runtime.GOOS == "linux" {
		head, err := (Program{Path: self}).head()
		if err != nil {
			t.Fatal(err)
		}
		if kind, ok := kindOfProgram(head); !ok || kind != (Kind{runtime.GOOS, runtime.GOARCH}) {
			t.Errorf("this program is for %s, %t", kind, ok)
		}
		file, err := elf.Open(self)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		dynamic := false
		for _, part := range file.Progs {
			dynamic = dynamic || part.Type == elf.PT_INTERP
		}
		if hasInterpreter(head) != dynamic {
			t.Errorf("this program has a dynamic linker: %t", !dynamic)
		}
	}
	mac := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0xfeedfacf), 0x100000c)
	freebsd := make([]byte, elfHeader)
	copy(freebsd, "\x7fELF\x02\x01\x01\x09")
	freebsd[18] = 62
	for want, head := range map[Kind][]byte{{"darwin", "arm64"}: mac, {"freebsd", "amd64"}: freebsd, {}: []byte("#!/bin/sh\n")} {
		if kind, ok := kindOfProgram(head); kind != want || ok != (want != Kind{}) {
			t.Errorf("%s, %t; want %s", kind, ok, want)
		}
	}
	liar := make([]byte, elfHeader)
	copy(liar, "\x7fELF\x02\x01\x01")
	for i := 16; i < elfHeader; i++ {
		liar[i] = 0xff
	}
	for n := range len(liar) + 1 {
		kindOfProgram(liar[:n])
		hasInterpreter(liar[:n])
	}
}
