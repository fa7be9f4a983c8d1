package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"execserver/client"
	"execserver/transport"
)

// TestInitializeTimeoutBeginsAgain has a program copy the server to its machine before it
// answers, which takes longer than the client waits for somebody who does nothing.
func TestInitializeTimeoutBeginsAgain(t *testing.T) {
	for _, test := range []struct {
		name    string
		arrived []int // bytes, every eight seconds
		want    error
	}{
		{"more and more", []int{1000, 2000, 3000, 4000}, nil},
		{"no more", []int{1000, 1000, 1000, 1000}, context.DeadlineExceeded},
		{"nothing", []int{0, 0}, context.DeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := transport.Pipe(0)
				var server sync.WaitGroup
				defer server.Wait()
				server.Go(func() {
					defer theirs.Close(transport.Reason{})
					message, err := theirs.Read(nil)
					var request struct {
						ID     json.RawMessage `json:"id"`
						Method string          `json:"method"`
					}
					if err = errors.Join(err, json.Unmarshal(message, &request)); err != nil || request.Method != "initialize" {
						t.Errorf("%s, %v", message, err)
						return
					}
					for _, bytes := range test.arrived {
						time.Sleep(8 * time.Second) // of the bubble
						text := fmt.Appendf(nil, `{"method":"initialize/progress","params":{"bytes":%d,"total":5000}}`, bytes)
						if err := theirs.Write(text); err != nil {
							return
						}
					}
					time.Sleep(8 * time.Second)
					text := fmt.Appendf(nil, `{"id":%s,"result":{"sessionId":"s","environmentInfo":{}}}`, request.ID)
					if err := theirs.Write(text); err != nil {
						return
					}
					for err == nil {
						_, err = theirs.Read(nil)
					}
				})
				env, err := client.New(t.Context(), ours, &client.Options{InitializeTimeout: 10 * time.Second})
				if !errors.Is(err, test.want) || test.want == nil && err != nil {
					t.Errorf("%v, want %v", err, test.want)
				}
				if env != nil {
					_ = env.Close()
				}
			})
		})
	}
}
