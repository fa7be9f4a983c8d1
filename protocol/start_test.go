package protocol_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/protocol"
)

// forms are starts in every way of saying them.
var forms = []string{
	`{"processId":"p","startId":"s","argv":["a"],"cwd":"/","env":{},"tty":true,"size":{"rows":1,"cols":2}}`,
	`{"processId":"p","argv":["a"],"cwd":"/","env":{},"io":{"pty":{"rows":1,"cols":2}}}`,
	`{"processId":"p","argv":["a"],"cwd":"/","env":{},"io":{"pipe":{"stdin":"open"}}}`,
	`{"processId":"p","direct":{"argv":["a"],"arg0":"b","cwd":"/","env":{"A":"B"},"io":{"pipe":{"stdin":"closed"}}}}`,
	`{"prepared":{"processId":"p","program":"/a","argv":["b"],"cwd":"/","env":{},"io":{"pty":{"rows":1,"cols":2}}}}`,
}

func TestStartForms(t *testing.T) {
	size := &protocol.TerminalSize{Rows: 1, Cols: 2}
	root, none := protocol.OSPath("/"), map[string]string{}
	want := []protocol.StartParams{
		{ProcessID: "p", StartID: new("s"), Argv: []string{"a"}, Cwd: root, Env: none, TTY: true, Size: size},
		{ProcessID: "p", Argv: []string{"a"}, Cwd: root, Env: none, TTY: true, Size: size},
		{ProcessID: "p", Argv: []string{"a"}, Cwd: root, Env: none, PipeStdin: true},
		{
			ProcessID: "p", Form: protocol.StartDirect, Argv: []string{"a"}, Arg0: new("b"),
			Cwd: root, Env: map[string]string{"A": "B"},
		},
		{
			ProcessID: "p", Form: protocol.StartPrepared, Program: protocol.OSPath("/a"), Argv: []string{"b"},
			Cwd: root, Env: none, TTY: true, Size: size,
		},
	}
	for i, in := range forms {
		got, err := protocol.DecodeParams[protocol.StartParams](raw(in))
		if diff := cmp.Diff(want[i], got, cmp.AllowUnexported(protocol.Path{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", in, err, diff)
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := protocol.DecodeParams[protocol.StartParams](text)
		if diff := cmp.Diff(got, again, cmp.AllowUnexported(protocol.Path{})); err != nil || diff != "" {
			t.Errorf("%s spelled %s: %v\n%s", in, text, err, diff)
		}
	}
}

// TestStartContradictions is about members that cannot stand beside each other.
func TestStartContradictions(t *testing.T) {
	const (
		ordinary = `"processId":"p","argv":["a"],"cwd":"/","env":{}`
		pty      = `"io":{"pty":{"rows":1,"cols":2}}`
		pipe     = `"io":{"pipe":{"stdin":"closed"}}`
		inner    = `"argv":["a"],"cwd":"/","env":{},` + pipe
	)
	for _, test := range []struct{ members, want string }{
		{ordinary, "tty: missing"},
		{ordinary + `,"tty":false,"startId":""`, "startId must not be empty"},
		{ordinary + `,"tty":false,"size":{"rows":1,"cols":2}`, "`size` is for a terminal; set `tty` to true"},
		{ordinary + `,"tty":true,"pipeStdin":false,"size":{"rows":1,"cols":2},` + pty, ""},
		{ordinary + `,"tty":false,` + pty, "`io` and `tty` contradict each other"},
		{ordinary + `,"tty":true,` + pipe, "`io` and `tty` contradict each other"},
		{ordinary + `,"pipeStdin":true,` + pipe, "`io` and `pipeStdin` contradict each other"},
		{ordinary + `,"pipeStdin":true,` + pty, "`io` and `pipeStdin` contradict each other"},
		{ordinary + `,"size":{"rows":2,"cols":2},` + pty, "`io` and `size` contradict each other"},
		{ordinary + `,"size":{"rows":2,"cols":2},` + pipe, "`io` and `size` contradict each other"},
		{ordinary + `,"io":{}`, "io: needs either pty or pipe"},
		{ordinary + `,"io":{"pty":{"rows":1,"cols":2},"pipe":{"stdin":"open"}}`, "io: needs either pty or pipe"},
		{ordinary + `,"io":{"pty":{}}`, "io.pty.rows: missing"},
		{ordinary + `,"io":{"pipe":{}}`, "io.pipe.stdin: missing"},
		{ordinary + `,"io":{"pipe":{"stdin":"inherit"}}`, `io.pipe.stdin: expected one of open, closed, got "inherit"`},
		{ordinary + `,"io":1`, "io: expected an object, got 1"},

		{ordinary + `,"tty":false,"drain":"quiet"`, ""},
		{ordinary + `,"tty":false,"drain":null`, ""},
		{ordinary + `,"tty":false,"drain":""`, `drain: expected one of quiet, eof, got ""`},
		{ordinary + `,"tty":false,"drain":250`, "drain: expected a string, got 250"},
		{`"processId":"p","drain":"eof","direct":{` + inner + `}`, ""},

		{`"processId":"p","direct":{"processId":"p",` + inner + `}`, ""},
		{`"processId":"p","direct":{"processId":"q",` + inner + `}`, "two different `processId`"},
		{`"direct":{` + inner + `}`, "processId: missing"},
		{`"processId":"p","direct":{` + inner + `},"prepared":{` + inner + `}`, "`direct` and `prepared` exclude each other"},
		{`"processId":"p","prepared":{` + inner + `}`, "prepared.program: missing"},
		{`"processId":"p","direct":{"argv":["a"],"cwd":"/","env":{}}`, "direct.io: missing"},
		{`"processId":"p","direct":[]`, "direct: expected an object, got an array"},
		{`"processId":"p","direct":{` + inner + `},"argv":["a"]`, "`direct` and `argv` exclude each other"},
		{`"processId":"p","direct":{` + inner + `},"tty":false`, "`direct` and `tty` exclude each other"},
		// What asks for protection is not overlooked, wherever it stands.
		{`"processId":"p","direct":{` + inner + `},"sandbox":{}`, "a direct start takes no `sandbox`"},
		{`"processId":"p","direct":{` + inner + `,"sandbox":{}}`, "a direct start takes no `sandbox`"},
		{`"processId":"p","direct":{` + inner + `,"envPolicy":{}}`, "a direct start takes no `envPolicy`"},
		{`"processId":"p","prepared":{"program":"/a",` + inner + `},"enforceManagedNetwork":true`, "a prepared start takes no `enforceManagedNetwork`"},
	} {
		_, err := protocol.DecodeParams[protocol.StartParams](raw("{" + test.members + "}"))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.members, err)
		case test.want != "" && (err == nil || err.Error() != "invalid params: "+test.want):
			t.Errorf("%s: error %v, want %q", test.members, err, test.want)
		}
	}
}

// TestAppendInspected is about the answers that tell of processes.
func TestAppendInspected(t *testing.T) {
	how := &protocol.ExitRecord{ExitCode: 143}
	for _, s := range texts {
		same(t, protocol.AppendStarted(nil, s, 7, 1<<53), object{
			"method": "process/started", "params": object{"processId": s, "pid": 7, "startedAtMs": 1 << 53},
		})
		same(t, protocol.AppendFailed(nil, s, protocol.Errorf(-1, "%s", s), 0), object{
			"method": "process/failed", "params": object{"processId": s, "error": object{"code": -1, "message": s}},
		})
		same(t, protocol.AppendFailed(nil, s, protocol.Errorf(-1, "%s", s), 3), object{
			"method": "process/failed", "params": object{"processId": s, "error": object{"code": -1, "message": s}, "omitted": 3},
		})
		same(t, protocol.AppendDropped(nil, s, 1, 2), object{
			"method": "process/dropped", "params": object{"processId": s, "firstSeq": 1, "droppedBytes": 2},
		})
		listed := protocol.ListedProcess{
			ProcessID: s, Pid: 1, Argv: []string{s, s}, ArgvTruncated: true, Cwd: protocol.OSPath("/" + s), TTY: true,
			StartedAtMs: 2, State: protocol.StateExited, NextSeq: 3, RetainedBytes: 4, StdinClosed: true, Exit: how,
		}
		want := object{
			"processId": s, "pid": 1, "argv": []string{s, s}, "argvTruncated": true, "cwd": listed.Cwd.String(), "tty": true,
			"startedAtMs": 2, "state": "exited", "nextSeq": 3, "retainedBytes": 4, "stdinClosed": true, "exitCode": 143,
		}
		same(t, []byte(text(t, protocol.ListResult{Processes: []protocol.ListedProcess{listed, listed}})), object{"processes": []any{want, want}})
		left := protocol.BackgroundProcess{ProcessID: "bg-1-2", ParentProcessID: s, Pid: 1, Argv: []string{s}, ArgvTruncated: true}
		wantLeft := object{"processId": "bg-1-2", "pid": 1, "argv": []string{s}, "argvTruncated": true, "state": "background"}
		if s != "" {
			wantLeft["parentProcessId"] = s
		}
		both := protocol.ListResult{Processes: []protocol.ListedProcess{listed}, Background: []protocol.BackgroundProcess{left, left}}
		same(t, []byte(text(t, both)), object{"processes": []any{want, wantLeft, wantLeft}})
		same(t, []byte(text(t, protocol.ListResult{Background: both.Background})), object{"processes": []any{wantLeft, wantLeft}})
	}
	same(t, []byte(text(t, protocol.ListResult{})), object{"processes": []any{}})
	same(t, []byte(text(t, protocol.WaitResult{})), object{"exited": false, "closed": false, "exitCode": nil})
	same(t, []byte(text(t, protocol.WaitResult{Exit: how, Closed: true})), object{"exited": true, "closed": true, "exitCode": 143})
	part := &protocol.StreamSnapshot{Head: []byte("a"), Tail: []byte("z"), OmittedBytes: 24, TotalBytes: 26}
	same(t, []byte(text(t, &protocol.SnapshotResult{Exit: how, Closed: true, NextSeq: 9, Stdout: part, Stderr: part})), object{
		"running": false, "closed": true, "nextSeq": 9, "exitCode": 143, "terminal": nil, "truncated": true, "omittedBytes": 48,
		"stdout": object{"head": "YQ==", "tail": "eg==", "omittedBytes": 24, "totalBytes": 26},
		"stderr": object{"head": "YQ==", "tail": "eg==", "omittedBytes": 24, "totalBytes": 26},
	})
	same(t, []byte(text(t, &protocol.SnapshotResult{Terminal: &protocol.StreamSnapshot{}})), object{
		"running": true, "closed": false, "nextSeq": 0, "exitCode": nil, "stdout": nil, "stderr": nil, "truncated": false,
		"omittedBytes": 0, "terminal": object{"head": "", "tail": "", "omittedBytes": 0, "totalBytes": 0},
	})
}
