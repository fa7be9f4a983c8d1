//go:build unix

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// attack is a server that lies, and what a program does with it.
type attack struct {
	capabilities []string
	// serve takes a message; processes are started by the server of the test unless it
	// returns true for process/start.
	serve func(c *fakeConn, m fakeMessage) bool
	use   func(ctx context.Context, env *client.Environment) error
	want  string // in the error; "" means that there is none
}

// after answers a start, and goes on with what lies returns.
func afterStart(lie func(c *fakeConn, id string)) func(c *fakeConn, m fakeMessage) bool {
	return func(c *fakeConn, m fakeMessage) bool {
		if m.Method != protocol.MethodStart {
			return false
		}
		c.reply(m, object{"processId": m.Params.ProcessID})
		lie(c, m.Params.ProcessID)
		return true
	}
}

// answering answers a method with the same result each time.
func answering(method string, result any) func(c *fakeConn, m fakeMessage) bool {
	return func(c *fakeConn, m fakeMessage) bool {
		if m.Method == method {
			c.reply(m, result)
		}
		return m.Method == method
	}
}

// all asks each of them, until one takes the message.
func all(serve ...func(c *fakeConn, m fakeMessage) bool) func(c *fakeConn, m fakeMessage) bool {
	return func(c *fakeConn, m fakeMessage) bool {
		for _, s := range serve {
			if s(c, m) {
				return true
			}
		}
		return false
	}
}

func event(method, id string, seq any, more object) object {
	params := object{"processId": id, "seq": seq}
	for name, value := range more {
		params[name] = value
	}
	return object{"method": method, "params": params}
}

func chunk(seq any) object { return object{"seq": seq, "stream": "stdout", "chunk": []byte("x")} }

func readAnswer(next any, chunks ...object) object {
	if chunks == nil {
		chunks = []object{}
	}
	return object{"chunks": chunks, "nextSeq": next, "exited": false, "exitCode": nil, "closed": false, "failure": nil, "sandboxDenied": false}
}

func exitedAnswer(next any) object {
	a := readAnswer(next)
	a["exited"], a["exitCode"], a["closed"] = true, 0, true
	return a
}

var fileAnswer = object{"isDirectory": false, "isFile": true, "isSymlink": false, "size": 3, "createdAtMs": 0, "modifiedAtMs": 0}

func run(ctx context.Context, env *client.Environment) error {
	c := env.Command(ctx, "/bin/true")
	c.Stdout = io.Discard
	return c.Run()
}

// runAndWait also asks the process how it ended.
func runAndWait(ctx context.Context, env *client.Environment) error {
	c := env.Command(ctx, "/bin/true")
	if err := c.Start(); err != nil {
		return err
	}
	exit, err := c.Process.Wait(ctx)
	if err == nil && exit == nil {
		return errors.New("neither an end nor an error")
	}
	return err
}

var attacks = map[string]attack{
	"a process that exits twice": {
		serve: afterStart(func(c *fakeConn, id string) { c.exited(id, 1, 0); c.exited(id, 2, 1); c.closed(id, 3) }),
		use:   run, want: "the end of the process twice",
	},
	"a process that exits twice after a gap": {
		serve: all(
			afterStart(func(c *fakeConn, id string) { c.exited(id, 2, 0); c.exited(id, 3, 1); c.closed(id, 4) }),
			answering(protocol.MethodRead, readAnswer(2, chunk(1))),
		),
		use: run, want: "the end of the process twice",
	},
	"a process that closes before it exits": {
		serve: afterStart(func(c *fakeConn, id string) { c.closed(id, 1) }),
		use:   runAndWait, want: "not how the process ended",
	},
	"a process that closes twice, and goes on": {
		serve: afterStart(func(c *fakeConn, id string) {
			c.exited(id, 1, 0)
			c.closed(id, 2)
			c.closed(id, 3)
			c.output(id, 2, "again")
			c.exited(id, 4, 1)
		}),
		use: run,
	},
	"events backwards, again, and of others": {
		serve: afterStart(func(c *fakeConn, id string) {
			c.output(id, 2, "b")
			c.output(id, 1, "a")
			c.output(id, 1, "A")
			c.output("nobody", 7, "?")
			c.closed("", 1)
			c.send(event(protocol.NotificationOutput, id, 3, object{"stream": "elsewhere", "chunk": ""}))
			c.exited(id, 4, 0)
			c.closed(id, 5)
		}),
		use: func(ctx context.Context, env *client.Environment) error {
			out, err := env.Command(ctx, "/bin/true").Output()
			if err == nil && string(out) != "ab" {
				err = fmt.Errorf("the output is %q", out)
			}
			return err
		},
	},
	"an event with the number 0": {
		serve: afterStart(func(c *fakeConn, id string) { c.output(id, 0, "x") }),
		use:   run, want: "the number 0",
	},
	"an event with the highest number": {
		serve: afterStart(func(c *fakeConn, id string) {
			c.send(event(protocol.NotificationOutput, id, uint64(math.MaxUint64), object{"stream": "stdout", "chunk": ""}))
		}),
		use: run, want: "numbers are from 1",
	},
	"an event with a negative number": {
		serve: afterStart(func(c *fakeConn, id string) {
			c.send(event(protocol.NotificationExited, id, -1, object{"exitCode": 0}))
		}),
		use: run, want: "process/exited",
	},
	"read answers that lead nowhere": {
		serve: all(
			afterStart(func(c *fakeConn, id string) { c.exited(id, 9, 0) }),
			answering(protocol.MethodRead, readAnswer(1, chunk(1))),
		),
		use: run, want: "nextSeq is 1",
	},
	"read answers backwards": {
		serve: all(
			afterStart(func(c *fakeConn, id string) { c.exited(id, 9, 0) }),
			answering(protocol.MethodRead, readAnswer(3, chunk(2), chunk(1))),
		),
		use: run, want: "comes after 2",
	},
	"a read answer about the far future": {
		serve: all(
			afterStart(func(c *fakeConn, id string) { c.exited(id, 9, 0) }),
			answering(protocol.MethodRead, exitedAnswer(uint64(math.MaxUint64))),
		),
		use: run, want: "nextSeq is 18446744073709551615",
	},
	"an attached process in the far future": {
		capabilities: []string{"processAck"},
		serve:        answering(protocol.MethodRead, readAnswer(uint64(math.MaxUint64))),
		use:          attachAndCopy, want: "nextSeq is 18446744073709551615",
	},
	"an attached process that closes before it exits": {
		capabilities: []string{"processAck"},
		serve: answering(protocol.MethodRead, func() object {
			a := readAnswer(1)
			a["closed"] = true
			return a
		}()),
		use: attachAndCopy, want: "not how the process ended",
	},
	"an attached process whose output comes again and again": {
		capabilities: []string{"processAck"},
		serve: func(c *fakeConn, m fakeMessage) bool {
			switch {
			case m.Method != protocol.MethodRead:
				return false
			case m.Params.AfterSeq > 1000: // Attach asks for the state
				c.reply(m, readAnswer(4))
			default:
				c.reply(m, readAnswer(2, chunk(1)))
			}
			return true
		},
		use: attachAndCopy, want: "comes after 1",
	},
	"a file of a negative size": {
		serve: answering(protocol.MethodGetMetadata, object{"isFile": true, "isDirectory": false, "size": -7}),
		use: func(ctx context.Context, env *client.Environment) error {
			info, err := env.FS("/").WithContext(ctx).Stat("file")
			if err == nil && info.Size() < 0 {
				err = errors.New("a negative size")
			}
			return err
		},
	},
	"blocks of nothing, for ever": {
		serve: all(answering(protocol.MethodGetMetadata, fileAnswer), answering(protocol.MethodReadBlock, object{"chunk": "", "eof": false})),
		use:   readAt, want: "a block of 0 bytes",
	},
	"a block that is too long": {
		serve: all(answering(protocol.MethodGetMetadata, fileAnswer), answering(protocol.MethodReadBlock, object{"chunk": make([]byte, 100), "eof": false})),
		use:   readAt, want: "a block of 100 bytes instead of 3",
	},
	"names that lead out of the directory": {
		serve: answering(protocol.MethodReadDirectory, object{"entries": []object{{"fileName": "../../etc", "isDirectory": true, "isFile": false}}}),
		use: func(ctx context.Context, env *client.Environment) error {
			_, err := env.FS("/").WithContext(ctx).ReadDir(".")
			return err
		},
		want: `cannot have the name "../../etc"`,
	},
	"a change outside of the directory": {
		capabilities: []string{"fsWatch"},
		serve: func(c *fakeConn, m fakeMessage) bool {
			if m.Method == protocol.MethodWatch {
				c.reply(m, object{"cursor": 5})
				for cursor, path := range []string{"/dir/../../etc/passwd", "/elsewhere", "/dir/./x"} {
					c.notify(protocol.NotificationChanged, object{"watchId": m.Params.WatchID, "events": []object{{"cursor": 3 - cursor, "kind": "created", "path": "file://" + path}}})
				}
				c.notify(protocol.NotificationChanged, object{"watchId": "unknown", "events": []object{{"cursor": 1, "kind": "created"}}})
			}
			return m.Method == protocol.MethodWatch
		},
		use: func(ctx context.Context, env *client.Environment) error {
			n := 0
			for e, err := range env.FS("/").WithContext(ctx).Watch("dir") {
				if err != nil {
					return err
				}
				if n++; !fs.ValidPath(e.Name) && e.Name != "" || e.Name != "" && !strings.HasPrefix(e.Name, "dir") {
					return fmt.Errorf("the name %q", e.Name)
				}
				if n == 4 {
					break
				}
			}
			return nil
		},
	},
	"a negative status": {
		serve: answering(protocol.MethodHTTPRequest, object{"status": 0, "headers": []object{}, "body": ""}),
		use:   get, want: "there is no status 0",
	},
	"a body of a negative length, backwards": {
		serve: func(c *fakeConn, m fakeMessage) bool {
			if m.Method == protocol.MethodHTTPRequest {
				c.reply(m, object{"status": 200, "headers": []object{{"name": "content-length", "value": "-5"}}, "body": ""})
				delta := func(id string, seq int, data string) {
					c.notify(protocol.NotificationHTTPBodyDelta, object{"requestId": id, "seq": seq, "delta": []byte(data), "done": false})
				}
				delta("nobody", 1, "x")
				delta("http-1", 1, "x")
				delta("http-1", 1, "x")
			}
			return m.Method == protocol.MethodHTTPRequest
		},
		use: get, want: "received seq 1, expected 2",
	},
	"credit above the limit": {
		capabilities: []string{"tcpOpen"},
		serve:        answering(protocol.MethodTCPOpen, object{"credit": uint64(math.MaxUint64)}),
		use:          forwardTo, want: "the limit is 1073741824",
	},
	"more credit than there may be": {
		capabilities: []string{"tcpOpen"},
		serve: func(c *fakeConn, m fakeMessage) bool {
			if m.Method == protocol.MethodTCPOpen {
				c.reply(m, object{"credit": protocol.MaxTCPCredit})
				c.notify(protocol.NotificationTCPCredit, object{"streamId": "1", "bytes": protocol.MaxTCPCredit})
			}
			return m.Method == protocol.MethodTCPOpen
		},
		use: forwardTo, want: "the limit is 1073741824",
	},
	"data beyond the credit": {
		capabilities: []string{"tcpOpen"},
		serve: func(c *fakeConn, m fakeMessage) bool {
			if m.Method == protocol.MethodTCPOpen {
				c.reply(m, object{"credit": 1})
				c.notify(protocol.NotificationTCPData, object{"streamId": "9", "chunk": "eA=="})
				c.notify(protocol.NotificationTCPData, object{"streamId": "1", "chunk": make([]byte, 1<<20+1)})
			}
			return m.Method == protocol.MethodTCPOpen
		},
		use: forwardTo, want: "but there is credit for",
	},
	"a stream that ends twice": {
		capabilities: []string{"tcpOpen"},
		serve: func(c *fakeConn, m fakeMessage) bool {
			if m.Method == protocol.MethodTCPOpen {
				c.reply(m, object{"credit": 1})
				c.notify(protocol.NotificationTCPEnd, object{"streamId": "1"})
				c.notify(protocol.NotificationTCPEnd, object{"streamId": "1"})
				c.notify(protocol.NotificationTCPReset, object{"streamId": "1"})
			}
			return m.Method == protocol.MethodTCPOpen
		},
		use: func(ctx context.Context, env *client.Environment) error {
			conn, err := env.DialContext(ctx, "tcp", "localhost:80")
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, conn)
			return errors.Join(err, conn.Close())
		},
	},
	"sessions of impossible times": {
		capabilities: []string{"sessionList", "sessionKeep"},
		serve: all(
			answering("session/list", object{"sessions": []object{{"sessionId": "", "createdAtMs": math.MinInt64, "endsAtMs": math.MaxInt64, "keepMs": uint64(math.MaxUint64), "running": -1, "state": "odd"}}}),
			answering("session/keep", object{"keepMs": uint64(math.MaxUint64)}),
		),
		use: func(ctx context.Context, env *client.Environment) error {
			kept, err := env.Keep(ctx, client.Lease{For: time.Second})
			sessions, listErr := env.Sessions(ctx)
			if kept < 0 || len(sessions) == 1 && sessions[0].Keep < 0 {
				return fmt.Errorf("kept for %s, %+v", kept, sessions)
			}
			return errors.Join(err, listErr)
		},
	},
	"requests, and answers to nothing": {
		serve: func(c *fakeConn, m fakeMessage) bool {
			if m.Method == protocol.MethodGetMetadata {
				for i := range 100 {
					c.send(object{"id": i, "method": "process/start", "params": object{}})
					c.send(object{"id": 1000 + i, "result": object{}})
					c.send(object{"id": "text", "error": object{"code": -1, "message": ""}})
				}
				c.raw("[]")
				c.raw(`{"jsonrpc":"2.0"}`)
				c.reply(m, fileAnswer)
				c.reply(m, fileAnswer)
			}
			return m.Method == protocol.MethodGetMetadata || m.Method == ""
		},
		use: func(ctx context.Context, env *client.Environment) error {
			_, err := env.FS("/").WithContext(ctx).Stat("file")
			return err
		},
	},
}

func attachAndCopy(ctx context.Context, env *client.Environment) error {
	p, err := env.Attach(ctx, "p")
	if err != nil {
		return err
	}
	if err := p.Copy(ctx, io.Discard, io.Discard); err != nil {
		return err
	}
	_, err = p.Wait(ctx)
	return err
}

func readAt(ctx context.Context, env *client.Environment) error {
	file, err := env.FS("/").WithContext(ctx).Open("file")
	if err != nil {
		return err
	}
	_, err = file.(io.ReaderAt).ReadAt(make([]byte, 3), 0)
	return errors.Join(err, file.Close())
}

func get(ctx context.Context, env *client.Environment) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/", http.NoBody)
	if err != nil {
		return err
	}
	response, err := env.Transport().RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.ContentLength < -1 {
		return fmt.Errorf("a length of %d", response.ContentLength)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

func forwardTo(ctx context.Context, env *client.Environment) error {
	conn, err := env.DialContext(ctx, "tcp", "localhost:80")
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, err = io.Copy(io.Discard, conn)
	return err
}

// TestHostileServer uses servers that lie. Whatever they send, the program learns of it by an
// error or not at all; nothing panics or waits for more than its context.
func TestHostileServer(t *testing.T) {
	t.Parallel()
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, func(c *fakeConn) {
				if !c.shake(attack.capabilities...) {
					return
				}
				for {
					m, ok := c.next()
					switch {
					case !ok:
						return
					case attack.serve(c, m), m.ID == nil:
					case m.Method == protocol.MethodTerminate:
						c.reply(m, object{"running": false})
					default:
						c.reply(m, json.RawMessage("{}"))
					}
				}
			})
			// A violation of the protocol ends the connection, and is the reason of what fails.
			env := f.dial(&client.Options{RecoveryTimeout: -1})
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience/2)
			defer cancel()
			var err error
			testkit.Within(t, name, func() { err = attack.use(ctx, env) })
			if attack.want == "" && err != nil || attack.want != "" && (err == nil || !strings.Contains(err.Error(), attack.want)) {
				t.Errorf("the error is %v; it should say %q", err, attack.want)
			}
		})
	}
}
