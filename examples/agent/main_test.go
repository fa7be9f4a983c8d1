//go:build unix

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"execserver/client/local"
)

// TestServe checks that the calls in the program's documentation get the promised
// answers.
func TestServe(t *testing.T) {
	env, err := local.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	const calls = `{"id":"1","run":"echo hello"}
{"id":"2","run":"echo some >&2; exit 3"}
{"id":"9"}
`
	var out bytes.Buffer
	if err := serve(context.Background(), env, strings.NewReader(calls), &out); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"1","output":"hello\n","running":false,"exit":"exit status 0"}
{"id":"2","output":"some\n","running":false,"exit":"exit status 3"}
{"id":"9","output":"","running":false,"error":"no command was started as tool call \"9\""}
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}
