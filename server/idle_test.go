package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"execserver/server"
	"execserver/transport"
)

// TestAwaitIdle has clients come and go by a clock that the test moves.
func TestAwaitIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := server.New(&server.Options{Session: server.SessionOptions{DetachedTTL: time.Minute}})
		defer srv.Shutdown(context.Background())
		begin := time.Now()
		idle := make(chan time.Duration, 1)
		go func() {
			if err := srv.AwaitIdle(t.Context(), 10*time.Minute); err != nil {
				t.Error(err)
			}
			idle <- time.Since(begin)
		}()
		connect := func() transport.Conn {
			client, end := transport.Pipe(0)
			go srv.ServeConn(end)
			if err := client.Write([]byte(`{"id":1,"method":"initialize","params":{"clientName":"test"}}`)); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Read(nil); err != nil {
				t.Fatal(err)
			}
			return client
		}
		time.Sleep(9 * time.Minute)
		client := connect() // for an hour
		time.Sleep(time.Hour)
		_ = client.Close(transport.Reason{Code: transport.CodeGoingAway}) // its session stays for a minute
		time.Sleep(9 * time.Minute)
		client = connect() // for a moment, with a session that holds nothing
		_ = client.Close(transport.Reason{Code: transport.CodeNormal})
		synctest.Wait()
		quiet := time.Since(begin)
		got := <-idle
		if got < quiet+10*time.Minute || got > quiet+12*time.Minute {
			t.Errorf("idle after %s, of which the server was in use for %s", got, quiet)
		}
	})
}

// TestAwaitIdleEnds ends the wait.
func TestAwaitIdleEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := server.New(nil)
		defer srv.Shutdown(context.Background())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := srv.AwaitIdle(ctx, time.Hour); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
	})
}
