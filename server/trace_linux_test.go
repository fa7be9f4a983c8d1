package server_test

import (
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/server"
	"execserver/transport"
)

// TestTracedRequestIsDropped ends the connection of a traced request that waits.
func TestTracedRequestIsDropped(t *testing.T) {
	ended := make(chan error, 2) // one too many, so that a second call shows
	srv := server.New(&server.Options{Trace: func(r server.TracedRequest) func(error) {
		if r.Method != "process/read" {
			return func(error) {}
		}
		return func(err error) { ended <- err }
	}})
	ours, theirs := transport.Pipe(0)
	served := make(chan error, 1)
	go func() { served <- srv.ServeConn(theirs) }()
	const trace = `,"trace":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`
	for _, message := range []string{
		`{"id":1,"method":"initialize","params":{"clientName":"test"}}`, `{"method":"initialized"}`,
		`{"id":2,"method":"process/start","params":{"processId":"p","argv":["sleep","1000"],"cwd":"/","env":{"PATH":"/usr/bin:/bin"},"tty":false,"pipeStdin":false,"arg0":null}}`,
		`{"id":3,"method":"process/read","params":{"processId":"p","waitMs":600000}` + trace + `}`,
	} {
		if err := ours.Write([]byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the other answers
		if answer, err := ours.Read(nil); err != nil {
			t.Fatalf("%s %v", answer, err)
		}
	}
	_ = ours.Close(transport.Reason{})
	<-served
	select {
	case err := <-ended:
		t.Log(err)
	case <-time.After(testkit.Patience):
		t.Fatal("nobody was told that the request has ended")
	}
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if len(ended) > 0 {
		t.Error("a request ended twice")
	}
}
