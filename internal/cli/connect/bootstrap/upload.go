package bootstrap

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// upload sends the program for a machine, named as by uname -sm, and waits until it starts.
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
		_, err := io.WriteString(s.stdin, fmt.Sprintf("%s %d %d\n", format, len(payload), size))
		if err == nil {
			_, err = s.stdin.Write(payload)
		}
		sending <- err
	}()
	if err = s.arrive(program.Kind, size, opts); err == nil {
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

// arrive reports the bytes that have arrived on the other machine until the program starts. Sent
// bytes may still be in buffers.
func (s *Session) arrive(kind Kind, size int64, opts *Options) error {
	report := func(arrived int64) {
		if opts.Progress != nil {
			opts.Progress(kind, arrived, size)
		}
	}
	for arrived := int64(0); ; {
		report(arrived)
		words, err := s.answer("got", "start")
		if err != nil {
			return err
		}
		if words[0] == "start" {
			report(size)
			return nil
		}
		if len(words) < 2 {
			return &Error{Kind: Noise, Text: words[0]}
		}
		if arrived, err = strconv.ParseInt(words[1], 10, 64); err != nil {
			return &Error{Kind: Noise, Text: shorten(words[1])}
		}
		arrived = max(0, min(arrived, size-1)) // not verified yet
	}
}

// pack returns the bytes of the program, compressed if requested, and its size.
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
