//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"execserver/internal/base64"
)

// The loopback floors measure the least that a server in a process of its own can cost: a
// peer that decides nothing, asked over TCP like a server.

// peerCommand is the hidden first argument with which this program becomes the peer.
const peerCommand = "peer"

// The first byte of a connection says what the peer does.
const (
	askStat   = 's' // then a path in every line; the peer answers with its size in a line
	askOutput = 'o' // sends the output of head in base64, in frames of a length and a text
	askKeys   = 'k' // then input for a terminal, whose output the peer sends back
)

// runPeer serves one connection and returns.
func runPeer() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	ask, err := r.ReadByte()
	if err != nil {
		return err
	}
	switch ask {
	case askOutput:
		return sendOutput(conn)
	case askKeys:
		return relayTerminal(r, conn)
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil // the end
		}
		info, err := os.Stat(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(conn, info.Size()); err != nil {
			return err
		}
	}
}

// sendOutput runs the command of the pipe case, and encodes and writes what each read
// returns.
func sendOutput(w io.Writer) error {
	argv := zeros(pipeBytes)
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	buf, frame := make([]byte, 64<<10), []byte(nil)
	for {
		n, err := out.Read(buf)
		if n > 0 {
			frame = binary.BigEndian.AppendUint32(frame[:0], uint32(n))
			if _, err := w.Write(base64.AppendEncode(frame, buf[:n])); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return cmd.Wait()
		}
		if err != nil {
			return err
		}
	}
}

// relayTerminal runs the command of the keystroke case.
func relayTerminal(r io.Reader, w io.Writer) error {
	master, cmd, err := startTerminal(context.Background(), rawCat...)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(w, struct{ io.Reader }{master}) // the other end notices if something is missing
	}()
	_, err = io.Copy(struct{ io.Writer }{master}, r)
	_ = master.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	<-ended        // ends with the terminal
	return err
}

// peer starts the process, connects, and sends ask.
func peer(ctx context.Context, ask byte) (conn net.Conn, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self, peerCommand)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, nil, err
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		conn, err = net.Dial("tcp", strings.TrimSpace(address))
	}
	if err == nil {
		_, err = conn.Write([]byte{ask})
	}
	stop = func() {
		if conn != nil {
			_ = conn.Close()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it may have been killed
	}
	if err != nil {
		stop()
	}
	return conn, stop, err
}

// metadataFloor asks the peer for the size of a file.
func metadataFloor(ctx context.Context, m *sample) error {
	conn, stop, err := peer(ctx, askStat)
	if err != nil {
		return err
	}
	defer stop()
	r := bufio.NewReader(conn)
	return latencies(ctx, m, "alone", metadataAlone, 0, func() error {
		if _, err := io.WriteString(conn, "/usr/bin/env\n"); err != nil {
			return err
		}
		_, err := r.ReadString('\n')
		return err
	})
}

// keystrokeFloors measures keystrokes on a bare terminal, and through the peer.
func keystrokeFloors(ctx context.Context, m *sample) error {
	if err := keystrokeFloor(ctx, m); err != nil {
		return err
	}
	conn, stop, err := peer(ctx, askKeys)
	if err != nil {
		return err
	}
	defer stop()
	return echoes(ctx, m, "echo over TCP", conn)
}

// pipeFloors measures the bare pipe, and the pipe through the peer.
func pipeFloors(ctx context.Context, m *sample) error {
	if err := readFloor(ctx, m, pipeBytes, zeros(pipeBytes)...); err != nil {
		return err
	}
	conn, stop, err := peer(ctx, askOutput)
	if err != nil {
		return err
	}
	defer stop()
	through := &sample{}
	begin := time.Now()
	r := bufio.NewReaderSize(conn, 64<<10)
	var n int64
	for n < pipeBytes {
		var length [4]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(length[:]))
		if _, err := r.Discard(base64.EncodedLen(size)); err != nil {
			return err
		}
		n += int64(size)
	}
	if err := floorRate(through, begin, n, pipeBytes); err != nil {
		return err
	}
	m.add("throughput, base64 over TCP", "MB/s", higher, through.values["throughput"].Value)
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after all output: %w", err)
	}
	return nil
}

// startsFloor starts as many commands at once without a server.
func startsFloor(ctx context.Context, m *sample) error {
	begin := time.Now()
	if err := inFlight(startsFlying, flying, func() error {
		_, err := exec.CommandContext(ctx, "/bin/true").Output()
		return err
	}); err != nil {
		return err
	}
	m.add("starts, 64 in flight", "/s", higher, startsFlying/time.Since(begin).Seconds())
	return nil
}
