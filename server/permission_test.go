//go:build unix

package server_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// serveTokens starts a server with the tokens of a file. The token of an entry is its
// name, preceded by "the token of ".
func serveTokens(t *testing.T, o server.Options, entries map[string]string) (as func(name string) bearer) {
	t.Helper()
	_, as = newTokenServer(t, o, entries)
	return as
}

// newTokenServer does the same and also returns the server.
func newTokenServer(t *testing.T, o server.Options, entries map[string]string) (srv *server.Server, as func(name string) bearer) {
	t.Helper()
	var file strings.Builder
	for name, text := range entries {
		digest := sha256.Sum256([]byte("the token of " + name))
		fmt.Fprintf(&file, "[[token]]\nname = %q\nsha256 = \"%x\"\n%s\n", name, digest, text)
	}
	authenticator, err := server.NewAuthenticator(server.AuthConfig{TokensFile: testkit.Secret(t, file.String())})
	if err != nil {
		t.Fatal(err)
	}
	o.Auth = authenticator
	srv = server.New(&o)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	url := listenWebSocket(t, srv).(webSocketServer).url
	return srv, func(name string) bearer { return bearer{url, "the token of " + name} }
}

// Methods by what one must be allowed to call them.
var (
	forAll = []string{
		"initialize", "environment/info", "environment/status", "environmentConfig/read", "web/link",
	}
	forExec = []string{
		"process/start", "process/write", "process/signal", "process/terminate", "process/closeStdin", "process/resize", "session/takeOver",
		"session/keep", "session/end",
	}
	forObservers = []string{ // and for exec
		"process/read", "process/readBackground", "process/wait", "process/snapshot", "process/screen", "process/usage", "process/list", "session/list", "recording/list", "recording/read",
	}
	forReaders = []string{
		"fs/getMetadata", "fs/readFile", "fs/readDirectory", "fs/walk", "fs/canonicalize", "fs/join", "fs/parent", "fs/watch",
		"fs/unwatch", "fs/open", "fs/readBlock", "fs/close", "fs/readLink", "capabilityRoots/discoverV1",
	}
	forWriters = []string{
		"fs/writeBlock", "fs/writeFile", "fs/createDirectory", "fs/remove", "fs/copy", "fs/rename", "fs/setMetadata", "fs/symlink",
	}
	forFull = []string{"http/request", "tcp/open", "fs/watchMissing"} // of which the latter cannot be confined
)

// TestScopeOfEveryMethod fails when a method is added about which nobody has decided who
// may call it, and has every method called with every scope.
func TestScopeOfEveryMethod(t *testing.T) {
	decided := slices.Concat(forAll, forExec, forObservers, forReaders, forWriters, forFull)
	slices.Sort(decided)
	methods := server.Methods()
	if !slices.Equal(decided, methods) {
		t.Fatalf("who may call what is decided here for\n%q, and these are the methods:\n%q", decided, methods)
	}
	for _, method := range methods {
		if !server.Decided(method) {
			t.Errorf("nobody has decided who may call %s", method)
		}
	}
	as := serveTokens(t, server.Options{}, map[string]string{
		"observer": `scope = ["observe"]`,
		"reader":   "scope = [\"files\"]\nroot = \"/srv\"",
		"writer":   "scope = [\"files\"]\nroot = \"/srv\"\naccess = \"write\"",
		"runner":   `scope = ["exec"]`,
		"both":     "scope = [\"exec\", \"files\"]\nroot = \"/srv\"",
		"all":      `scope = ["full"]`,
	})
	for name, allowed := range map[string][]string{
		"observer": slices.Concat(forAll, forObservers),
		"reader":   slices.Concat(forAll, forReaders),
		"writer":   slices.Concat(forAll, forReaders, forWriters),
		"runner":   slices.Concat(forAll, forObservers, forExec),
		"both":     slices.Concat(forAll, forObservers, forExec, forReaders),
		"all":      methods,
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, as(name)) // before the handshake nothing is done
			for _, method := range methods {
				r := c.call(method, nil)
				denied := r.Error != nil && strings.Contains(r.Error.Message, "these credentials do not allow")
				if denied == slices.Contains(allowed, method) {
					t.Errorf("%s: denied = %t: %v", method, denied, r.Error)
				}
				if denied && r.Error.Code != protocol.CodeInvalidRequest {
					t.Errorf("%s: denied with the code %d", method, r.Error.Code)
				}
			}
		})
	}
}

// denied expects a call to be refused for want of a right.
func (c *caller) denied(method string, p params, what string) {
	c.t.Helper()
	r := c.call(method, p)
	if r.Error == nil || r.Error.Code != protocol.CodeInvalidRequest || !strings.Contains(r.Error.Message, "these credentials do not allow "+what) {
		c.t.Errorf("%s %v: got %s %v, want it denied: %s", method, p, r.Result, r.Error, what)
	}
}

// TestObserverOfOthers shows what a token that may observe can do with the session of
// another: watch, and nothing else.
func TestObserverOfOthers(t *testing.T) {
	as := serveTokens(t, server.Options{}, map[string]string{
		"owner": `scope = ["full"]`, "other": `scope = ["full"]`, "observer": `scope = ["observe"]`, "both": `scope = ["observe", "exec"]`,
	})
	owner := newCaller(t, as("owner"), "")
	observe := params{"clientName": "test", "observeSessionId": owner.SessionID}
	for _, name := range []string{"observer", "both"} {
		c := connect(t, as(name))
		if err := c.initialize(observe); err != nil {
			t.Fatal(err)
		}
		c.result("process/list", nil, new(struct{}))
		if name == "both" {
			c.denied("session/takeOver", nil, "to take over a session of others")
		} else {
			c.denied("session/takeOver", nil, "`session/takeOver`")
		}
		resume := connect(t, as(name)).initialize(params{"clientName": "test", "resumeSessionId": owner.SessionID})
		if resume == nil {
			t.Errorf("%s has resumed the session of another", name)
		}
	}
	if err := connect(t, as("other")).initialize(observe); err == nil || err.Message != "unknown session id "+owner.SessionID {
		t.Errorf("another who may do everything observes: %v", err)
	}
	if err := connect(t, as("observer")).initialize(params{"clientName": "test"}); err == nil || !strings.Contains(err.Message, "a session of one's own") {
		t.Errorf("an observer has a session: %v", err)
	}
}

// TestLongestSession has a session end although it is in use.
func TestLongestSession(t *testing.T) {
	t.Parallel() // it mostly waits
	as := serveTokens(t, server.Options{}, map[string]string{"short": "scope = [\"full\"]\nmax_session = \"1s\"", "long": `scope = ["full"]`})
	long := newCaller(t, as("long"), "")
	began := time.Now()
	c := connect(t, as("short"))
	var made protocol.InitializeResult
	c.result("initialize", params{"clientName": "test"}, &made) // and nothing more, for which it may be too late
	if got, want := c.ended(1008), "the session has lived for as long as these credentials allow"; got != want {
		t.Errorf("closed because %q, want %q", got, want)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("it has ended after %v", took)
	}
	err := connect(t, as("short")).initialize(params{"clientName": "test", "resumeSessionId": made.SessionID})
	if err == nil || err.Message != "unknown session id "+made.SessionID {
		t.Errorf("it is resumed: %v", err)
	}
	long.result("environment/status", nil, new(struct{}))
}

// TestCommandsOfToken starts what a token allows, and what it does not.
func TestCommandsOfToken(t *testing.T) {
	inside, outside := realTempDir(t), realTempDir(t)
	for link, target := range map[string]string{inside + "/out": outside, outside + "/in": inside} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	as := serveTokens(t, server.Options{AllowDirectExec: true, AllowPreparedExec: true}, map[string]string{
		"runner": fmt.Sprintf("scope = [\"exec\"]\ndirectory = %q\ncommands = [[\"/bin/echo\", \"a\"], [\"/bin/ls\", \"-d\", \"...\"]]", inside),
	})
	c := newCaller(t, as("runner"), "")
	n := 0
	start := func(argv []string, cwd string, env params, more params) params {
		n++
		p := params{"processId": fmt.Sprint("p", n), "argv": argv, "cwd": cwd, "env": env, "tty": false}
		for name, value := range more {
			p[name] = value
		}
		return p
	}
	for _, allowed := range []params{
		start([]string{"/bin/echo", "a"}, inside, params{}, nil),
		start([]string{"/bin/ls", "-d"}, inside+"/.", params{"TERM": "dumb", "LANG": "C.UTF-8"}, nil),
		start([]string{"/bin/ls", "-d", "a", "b"}, outside+"/in", params{}, nil),
		start([]string{"/bin/echo", "a"}, inside, params{}, params{"arg0": "/bin/echo", "tty": true}),
	} {
		c.result("process/start", allowed, new(struct{}))
	}
	a := []string{"/bin/echo", "a"}
	for _, row := range []struct {
		p    params
		what string
	}{
		{start([]string{"/bin/echo"}, inside, params{}, nil), "the command"},
		{start([]string{"/bin/echo", "a", "b"}, inside, params{}, nil), "the command"},
		{start([]string{"echo", "a"}, inside, params{}, nil), "the command"},
		{start([]string{"/bin/../bin/echo", "a"}, inside, params{}, nil), "the command"},
		{start([]string{"/bin/sh", "-c", "id"}, inside, params{}, nil), "the command"},
		{start([]string{"/bin/ls", "x"}, inside, params{}, nil), "the command"},
		{start([]string{"/bin/ls", "-d", "..."}, outside, params{}, nil), "the directory"},
		{start(a, inside, params{}, params{"arg0": "sh"}), "the command"},
		{start([]string{"/bin/sh"}, inside, params{}, params{"timeoutMs": 0, "sandbox": params{}}), "the command"},
		{start(a, inside, params{"PATH": strings.Repeat("a", 200_000)}, params{"timeoutMs": 0}), `the variable "PATH"`},
		{start(a, inside, params{"LD_PRELOAD": "/tmp/x.so"}, nil), `the variable "LD_PRELOAD"`},
		{start(a, inside, params{"PATH": "/tmp"}, nil), `the variable "PATH"`},
		{start(a, inside, params{"LANG": "../../tmp/x"}, nil), `the variable "LANG"`},
		{start(a, inside, params{"COLUMNS": "a[$(id)]"}, nil), `the variable "COLUMNS"`},
		{start(a, inside, params{"TERM": "a\nb"}, nil), `the variable "TERM"`},
		{start(a, inside, params{}, params{"envPolicy": params{
			"inherit": "all", "ignoreDefaultExcludes": false, "exclude": []string{}, "includeOnly": []string{}, "set": params{"LD_PRELOAD": "x"},
		}}), "the variable"},
		{start(a, outside, params{}, nil), "the directory"},
		{start(a, "/", params{}, nil), "the directory"},
		{start(a, inside+"/..", params{}, nil), "the directory"},
		{start(a, inside+"/out", params{}, nil), "the directory"},
		{start(a, inside+"-", params{}, nil), "the directory"},
		{start(a, inside+"/missing", params{}, nil), "the directory"},
	} {
		c.denied("process/start", row.p, row.what)
	}
	var list struct{ Processes []struct{} }
	c.result("process/list", nil, &list)
	if len(list.Processes) != 4 {
		t.Errorf("%d processes were started", len(list.Processes))
	}
}
