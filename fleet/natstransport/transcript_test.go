//go:build unix

package natstransport_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"execserver/fleet/internal/natstest"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
	"execserver/internal/testkit/servertest"
	"execserver/internal/testkit/transcript"
	"execserver/server"
	"execserver/transport"
)

// TestTranscripts runs the transcripts of the protocol against a server in this process
// through a NATS server.
func TestTranscripts(t *testing.T) {
	files, err := transcript.ParseDir(filepath.Join("..", "..", "transcripts"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for _, assignment := range f.Env {
			name, value, _ := strings.Cut(assignment, "=")
			t.Setenv(name, value)
		}
	}
	for _, f := range files {
		if !f.For("nats") {
			continue
		}
		for _, s := range f.Scenarios {
			t.Run(f.Name+"/"+s.Name, func(t *testing.T) {
				dir, err := filepath.EvalSymlinks(t.TempDir()) // as fs/canonicalize answers it
				if err != nil {
					t.Fatal(err)
				}
				o := servertest.Options(t, f.Options)
				limit := o.MaxMessageBytes
				srv := server.New(o)
				t.Cleanup(func() { testkit.Shutdown(t, srv) })
				if err := s.Run(listenNATS(t, srv, limit), transcript.Options{Dir: dir}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// natsServer connects through a NATS server.
type natsServer struct{ dialer *natstransport.Dialer }

func listenNATS(t *testing.T, srv *server.Server, limit int64) transcript.Server {
	t.Helper()
	url := natstest.Serve(t, nil).ClientURL()
	listener, err := natstransport.Listen(natstest.Connect(t, url), "box", &natstransport.Options{MaxMessageBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(listener.Close)
	dialer := natstransport.NewDialer(natstest.Connect(t, url), nil)
	t.Cleanup(dialer.Close)
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go srv.ServeFor(conn, conn.Hello())
		}
	}()
	return natsServer{dialer}
}

func (s natsServer) Connect() (transcript.Conn, error) {
	conn, err := s.dialer.Dial(context.Background(), "box", natstransport.Call{Hello: []byte(`{"alone":true,"all":true}`)})
	return natsPeer{conn}, err
}

// natsPeer is a peer whose connection ends with a code.
type natsPeer struct{ conn *natstransport.Conn }

func (p natsPeer) Send(_ transcript.Frame, message []byte) error { return p.conn.Write(message) }

func (p natsPeer) End(code int, reason string) error {
	return p.conn.Close(transport.Reason{Code: code, Text: reason})
}

func (p natsPeer) Drop() { _ = p.conn.Close(transport.Reason{}) }

func (p natsPeer) Receive() ([]byte, error) {
	message, err := p.conn.Read(nil)
	if closed, ok := errors.AsType[*transport.PeerClosedError](err); ok {
		return message, &transcript.EndedError{Code: closed.Reason.Code, Reason: closed.Reason.Text}
	}
	return message, err
}
