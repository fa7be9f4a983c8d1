package bootstrap

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// step is how many bytes are sent between two reports of progress.
const step = 64 << 10

// upload sends the program for a machine, which is named as uname -sm does, and waits until
// it starts.
func (s *Session) upload(programs programs, machine string, opts *Options) error {
	program, ok := programs.of(machine)
	if !ok {
		return &Error{Kind: Machine, Text: shorten(machine)}
	}
	if err := program.check(); err != nil {
		return err
	}
	if err := s.run(compact(uploadScript)); err != nil {
		return err
	}
	words, err := s.answer("send")
	if err != nil {
		return err
	}
	format := strings.Join(words[1:], " ")
	payload, size, err := program.pack(format == "gzip")
	if err != nil {
		return fmt.Errorf("read %s: %w", program.Path, err)
	}
	sending := make(chan error, 1)
	go func() { // ends with the program's last byte, or with the command
		sending <- s.send(fmt.Sprintf("%s %d %d\n", format, len(payload), size), payload, program.Kind, opts)
	}()
	if _, err = s.answer("start"); err == nil {
		return <-sending
	}
	s.End()
	<-sending
	if failed, ok := errors.AsType[*Error](err); ok {
		failed.For = program.Path
		if failed.Kind == Exec && !program.static() {
			failed.Text += "; it needs a dynamic linker, so build it with CGO_ENABLED=0"
		}
	}
	return err
}

// send writes the program to the other machine.
func (s *Session) send(head string, payload []byte, kind Kind, opts *Options) error {
	if _, err := io.WriteString(s.stdin, head); err != nil {
		return err
	}
	size := int64(len(payload))
	for rest := payload; ; {
		if opts.Progress != nil {
			opts.Progress(kind, size-int64(len(rest)), size)
		}
		if len(rest) == 0 {
			return nil
		}
		n, err := s.stdin.Write(rest[:min(step, len(rest))])
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
}

// pack returns the bytes of the program, compressed or not, and its size.
func (p Program) pack(compress bool) (payload []byte, size int64, err error) {
	file, err := os.Open(p.file())
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	if !compress {
		payload, err = io.ReadAll(file)
		return payload, int64(len(payload)), err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if size, err = io.Copy(w, file); err != nil {
		return nil, 0, err
	}
	if err := w.Close(); err != nil {
		return nil, 0, err
	}
	return packed.Bytes(), size, nil
}
