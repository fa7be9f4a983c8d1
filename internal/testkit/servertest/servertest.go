// Package servertest makes servers for the tests of more than one package.
package servertest

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"execserver/internal/extension"
	"execserver/internal/recording"
	"execserver/internal/sandbox"
	"execserver/internal/web"
	"execserver/server"
)

// AreFlags reports whether the program has a flag for each of the options.
func AreFlags(options map[string]string) bool {
	for name := range options {
		switch name {
		case "max-sessions", "sandbox", "retained-output-bytes", "retained-output-total", "detached-output",
			"detached-session-ttl":
		default:
			return false
		}
	}
	return true
}

// Options understands the flags of the program that matter to the wire, and options that
// only Go programs have.
func Options(t testing.TB, flags map[string]string) *server.Options {
	t.Helper()
	o := &server.Options{Version: "0.0.0-test", Auth: server.Unauthenticated, Extensions: &extension.Options{}}
	for name, value := range flags {
		number := func() int {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatalf("option %s: %v", name, err)
			}
			return n
		}
		switch name {
		case "max-message-bytes":
			o.MaxMessageBytes = int64(number())
		case "max-connections":
			o.MaxConnections = number()
		case "durable-writes":
			o.DurableWrites = value == "true"
		case "max-sessions":
			o.Session.MaxSessions = number()
		case "max-observers-per-session":
			o.Session.MaxObservers = number()
		case "sandbox":
			// Nothing is confined where the transcripts run, so that they say the
			// same everywhere: what needs no means, and how the rest is refused.
			engine := sandbox.New(&sandbox.Options{Mode: sandbox.Mode(value), Mechanisms: []sandbox.Mechanism{}, StateDir: t.TempDir()})
			t.Cleanup(engine.Close)
			o.Extensions.Sandbox = engine
		case "allow-direct-exec":
			o.AllowDirectExec = value == "true"
		case "allow-prepared-exec":
			o.AllowPreparedExec = value == "true"
		case "max-processes-per-session":
			o.Session.MaxProcesses = number()
		case "max-http-body-bytes":
			o.MaxHTTPBodyBytes = int64(number())
		case "retained-output-bytes":
			o.Session.RetainedBytes = int64(number())
		case "retained-output-total":
			o.Session.RetainedTotalBytes = int64(number())
		case "detached-output":
			o.Session.EvictDetached = value == "evict"
		case "record":
			recorder, err := recording.Open(filepath.Join(t.TempDir(), "recordings"), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(recorder.Close)
			o.Extensions.Recorder = recorder
		case "page":
			if value == "true" {
				o.Extensions.Page = web.New()
			}
		case "drain-timeout":
			d, err := time.ParseDuration(value)
			if err != nil {
				t.Fatalf("option %s: %v", name, err)
			}
			if d == 0 {
				d = -1
			}
			o.Session.DrainTimeout = d
		case "detached-session-ttl":
			d, err := time.ParseDuration(value)
			if err != nil {
				t.Fatalf("option %s: %v", name, err)
			}
			o.Session.DetachedTTL = d
		case "max-session-keep":
			d, err := time.ParseDuration(value)
			if err != nil {
				t.Fatalf("option %s: %v", name, err)
			}
			if d == 0 {
				d = -1
			}
			o.Session.MaxKeep = d
		default:
			t.Fatalf("unknown option %s", name)
		}
	}
	return o
}
