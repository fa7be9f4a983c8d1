package protocol_test

import (
	"bytes"
	"testing"

	"execserver/protocol"
)

// BenchmarkDecode decodes the params of the requests that clients send most.
func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"ExecParams", "WriteParams", "AckParams", "FsParams", "FsReadBlockParams", "ExecOutputDeltaNotification"} {
		b.Run(name, func(b *testing.B) {
			params := raw(whole[name])
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decoders[name](params); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAppend encodes the events of processes.
func BenchmarkAppend(b *testing.B) {
	chunk := protocol.Chunk{Seq: 7, Stream: protocol.Stdout, Data: bytes.Repeat([]byte("x"), 100)}
	exit := protocol.ExitRecord{EndedBy: protocol.EndedBySelf, Rusage: &protocol.Rusage{UserMs: 1, MaxRSSBytes: 1 << 20}}
	for name, event := range map[string]func(b []byte) []byte{
		"output": func(b []byte) []byte { return protocol.AppendOutput(b, "p", chunk) },
		"exited": func(b []byte) []byte { return protocol.AppendExited(b, "p", 8, exit) },
		"closed": func(b []byte) []byte { return protocol.AppendClosed(b, "p", 9) },
	} {
		b.Run(name, func(b *testing.B) {
			var frame []byte
			b.ReportAllocs()
			for b.Loop() {
				frame = event(frame[:0])
			}
		})
	}
}
