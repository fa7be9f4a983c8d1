package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/extension"
	"execserver/internal/recording"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// recordInto returns options of a server that records.
func recordInto(t *testing.T, opts *recording.Options) server.Options {
	t.Helper()
	recorder, err := recording.Open(filepath.Join(t.TempDir(), "recordings"), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(recorder.Close)
	return server.Options{Extensions: &extension.Options{Recorder: recorder}}
}

// dialAs connects with a token, without a session.
func dialAs(t *testing.T, by bearer) *client.Environment {
	t.Helper()
	env, err := client.Dial(testContext(t), by.url, &client.Options{Token: by.token, NoSession: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	return env
}

// ids are those of the recordings that a client may read, which must be listed in order.
func ids(t *testing.T, env *client.Environment) (ids []string) {
	t.Helper()
	list, err := env.Recordings(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		ids = append(ids, r.ID)
	}
	if !slices.IsSortedFunc(ids, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("the newest is not the first: %q", ids)
	}
	return ids
}

// Recordings of many processes are listed and read by who may observe them, and by nobody
// else. With input, to observe is not enough.
func TestRecordings(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, input := range []bool{false, true} {
		t.Run(fmt.Sprint("input ", input), func(t *testing.T) {
			as := serveTokens(t, recordInto(t, &recording.Options{Input: input}), map[string]string{
				"ann": `scope = ["exec"]`, "bob": `scope = ["exec"]`, "eve": `scope = ["observe"]`, "all": `scope = ["full", "observe"]`,
			})
			ann := as("ann")
			env, err := client.Dial(testContext(t), ann.url, &client.Options{Token: ann.token})
			if err != nil {
				t.Fatal(err)
			}
			defer env.Close()
			n := 3
			if !input {
				n = 260 // more than one answer lists
			}
			for i := range n {
				c := env.Command(testContext(t), "/bin/cat")
				c.Stdin = strings.NewReader(fmt.Sprintf("secret %d\n", i))
				if out, err := c.Output(); err != nil || !strings.HasPrefix(string(out), "secret") {
					t.Fatalf("%q, %v", out, err)
				}
			}
			mine := dialAs(t, ann)
			testkit.WaitFor(t, testkit.Patience, func() error {
				list, err := mine.Recordings(testContext(t))
				live := slices.ContainsFunc(list, func(r client.RecordingInfo) bool { return r.Live })
				if err != nil || len(list) != n || live {
					return fmt.Errorf("%d recordings, live %t, %v", len(list), live, err)
				}
				return nil
			})
			list, err := mine.Recordings(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			first := list[n-1]
			if !first.Own || first.Args[0] != "/bin/cat" || first.Input != input || first.Session != env.Session() || first.Ended.Before(first.Started) {
				t.Errorf("the recording is %+v", first)
			}
			text, err := io.ReadAll(mine.Recording(testContext(t), first.ID))
			if err != nil || int64(len(text)) != first.Size || !bytes.Contains(text, []byte(`"o", "secret 0\r\n"`)) || bytes.Contains(text, []byte(`"i", "secret 0`)) != input {
				t.Errorf("%s, %v", text, err)
			}
			for name, sees := range map[string]bool{"bob": false, "eve": !input, "all": true} {
				other := dialAs(t, as(name))
				if got := len(ids(t, other)); got != n && sees || got != 0 && !sees {
					t.Errorf("%s sees %d recordings", name, got)
				}
				_, err := io.ReadAll(other.Recording(testContext(t), first.ID))
				if sees != (err == nil) || err != nil && !errors.Is(err, protocol.ErrInvalidRequest) {
					t.Errorf("%s reads a recording: %v", name, err)
				}
			}
		})
	}
}
