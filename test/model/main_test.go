//go:build linux

// Package model does random things to a server and compares what it says with a
// model that is too simple to be wrong: a process is what was written to it and
// how it may have ended.
//
//	MODEL_STEPS=100000 go test -race ./test/model
//	MODEL_SEED=1 go test ./test/model
package model

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/server"
)

func TestMain(m *testing.M) {
	testkit.DefaultSignals()
	// The thread that spawns children must live as long as the program.
	testkit.VerifyMain(m)
}

// stepsPerSession is the number of steps after which the driver opens a new session.
const stepsPerSession = 250

func TestModel(t *testing.T) {
	steps, seed := testkit.Number(t, "MODEL_STEPS", 1500), testkit.Number(t, "MODEL_SEED", uint64(time.Now().UnixNano()))
	t.Logf("%d steps; MODEL_SEED=%d repeats them", steps, seed)
	srv := server.New(&server.Options{
		Auth: server.Unauthenticated,
		// A client that is held up is not taken for one without pings, whose
		// output counts as acknowledged when it is sent; and nothing goes on by
		// chance.
		ProbeTimeout: time.Hour,
		PingInterval: time.Hour,
		Session:      server.SessionOptions{RetainedBytes: 64 << 10, DetachedTTL: time.Hour},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeWebSocket(narrow{l})
	defer testkit.Shutdown(t, srv)
	counts := make(map[string]int)
	for done := uint64(0); done < steps && !t.Failed(); done += stepsPerSession {
		d := newDriver(t, "ws://"+l.Addr().String(), seed, done)
		d.run(int(min(stepsPerSession, steps-done)))
		if done%10_000 == 0 && done > 0 {
			t.Logf("%d steps done", done)
		}
		for name, n := range d.counts {
			counts[name] += n
		}
	}
	t.Logf("steps: %v", counts)
}

// socketBuffer is small, so that the server soon notices a slow reader.
const socketBuffer = 4 << 10

// narrow is a listener whose connections have small buffers.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		err = conn.(*net.TCPConn).SetWriteBuffer(socketBuffer)
	}
	return conn, err
}

// dialer makes connections with small buffers, too.
var dialer = &net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, socketBuffer)
	})
	return errors.Join(err, failed)
}}
