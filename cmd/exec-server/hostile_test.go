//go:build unix

package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"
)

// evil is text of a server that wants to control the terminal: it sets the title and
// clears the screen, in both forms of the control characters.
const evil = "\x1b]0;owned\x07\x1b[2J\r\u009b2J\x7f\u202etxt"

// evilServer listens where its url says, and answers each request with evil text wherever
// there may be text.
func evilServer(t *testing.T, refusesAll bool) (url string) {
	var watched atomic.Bool // a second fs/watch fails, so that watch ends
	return fakeServer(t, func(m fakeRequest) (messages []object, last bool) {
		result := evilAnswers[m.Method]
		if id := m.Params.ObserveSessionID; id != nil { // initialize must confirm it
			result = maps.Clone(result)
			result["sessionId"] = *id
		}
		if result == nil || refusesAll || m.Method == "fs/watch" && watched.Swap(true) {
			return []object{{"id": m.ID, "error": object{"code": -32603, "message": evil}}}, false
		}
		messages = []object{{"id": m.ID, "result": result}}
		if m.Method != "fs/watch" {
			return messages, false
		}
		event := object{"cursor": 1, "kind": evil, "path": "file:///evil%1b%5b2J"}
		return append(messages, object{"method": "fs/changed", "params": object{
			"watchId": m.Params.WatchID, "events": []any{event},
		}}), true
	})
}

var evilAnswers = map[string]object{
	"initialize": {"sessionId": "own" + evil, "environmentInfo": object{
		"shell": object{"name": evil, "path": evil}, "cwd": "file:///" + "x%1b%5b2J", "platformOs": "linux" + evil,
		"executorVersion": evil, "machine": evil, "sandbox": object{"mode": "auto", "means": "none", "reason": evil},
		"sessionLifetime": object{"detachedMs": uint64(1) << 63, "silentMs": uint64(1) << 63, "maxKeepMs": uint64(1) << 63},
		"capabilities": object{
			evil: true, "processAck": true, "processList": true, "processSnapshot": true, "processScreen": true, "webLink": true, "sessionList": true, "sessionKeep": true, "recordings": true,
			"sessionControl": true, "sessionObserve": true, "sessionResume": true, "fsMetadata": true, "fsWatch": true, "fsWatchMissing": true,
		},
	}},
	"session/list": {"sessions": []object{
		{
			"sessionId": evil, "name": evil, "clientName": evil, "principal": evil, "state": evil, "createdAtMs": -1 << 62,
			"endsAtMs": 1 << 62, "keepMs": uint64(1) << 63, "observers": 1, "processes": 1, "running": 1,
		},
		{"sessionId": "plain", "name": "$(touch owned)", "clientName": "exec-server-run", "own": true, "state": "attached", "processes": 1},
	}},
	"process/list": {"processes": []object{
		{
			"sessionId": evil, "processId": evil, "pid": 1, "argv": []string{evil, evil}, "cwd": "file:///" + "x%1b%5b2J", "state": evil,
			"startedAtMs": 1 << 62, "nextSeq": 5,
		},
		{
			"sessionId": evil, "processId": "signaled" + evil, "pid": 1, "argv": []string{evil, evil}, "cwd": "file:///" + "x%1b%5b2J",
			"state": "exited", "exitCode": 1, "signal": evil,
		},
		{"sessionId": "plain", "processId": "p", "pid": 1, "argv": []string{}, "cwd": "file:///", "state": "running"},
	}},
	"fs/getMetadata": {
		"isDirectory": true, "isFile": false, "isSymlink": false, "size": 0, "createdAtMs": 0, "modifiedAtMs": 0,
		"kind": "directory", "mode": 0o755,
	},
	"fs/readDirectory": {"entries": []object{
		{
			"fileName": evil, "isDirectory": false, "isFile": false, "kind": "symlink", "mode": 0o777, "size": 1,
			"modifiedAtMs": 1 << 62, "target": evil,
		},
	}},
	"fs/watch": {"cursor": 0},
	"recording/list": {"recordings": []object{
		{"recordingId": evil, "sessionId": evil, "processId": evil, "principal": evil, "argv": []string{evil}, "cwd": evil, "startedAtMs": 1 << 62, "endedAtMs": -1 << 62, "sizeBytes": -1},
		{"recordingId": "pipes", "sessionId": "plain", "processId": "p", "argv": []string{evil}, "startedAtMs": 1, "live": true},
	}},
	"web/link":     {"path": "/web/#" + evil, "lifeMs": uint64(1) << 63},
	"process/read": {"chunks": []any{}, "nextSeq": 2, "exited": true, "exitCode": 0, "closed": true},
	"process/screen": {
		"running": true, "nextSeq": 1, "size": object{"rows": 1, "cols": 9}, "rows": []string{evil}, "styledRows": []string{evil + "\x1b[31;2J"},
		"cursor": object{"row": 1 << 30, "col": -1, "visible": true}, "title": evil, "omittedBytes": 7,
	},
}

// TestServersCannotControlTheTerminal lets servers put control characters into everything
// that this program prints of them.
func TestServersCannotControlTheTerminal(t *testing.T) {
	for _, refusesAll := range []bool{false, true} {
		url := evilServer(t, refusesAll)
		for _, line := range []string{
			"ps", "ps -a --json", "sessions", "sessions --json", "sessions --end own", "info", "info --json",
			"logs plain", "logs " + evil[:1], "screen plain", "screen --color plain", "screen --json plain", "kill plain", "kill " + evil, "ls -l", "ls -l --json", "cat file",
			"cp :/ " + filepath.Join(t.TempDir(), "copy"), "doctor", "doctor --json", "attach plain", "attach --read-only plain", "attach exec",
			"run -- true", "run -d -- true", "cast ls", "cast ls --json", "cast get no", "forward 0:1", "web", "watch", "watch --json", "__complete logs ", "__complete ls ",
		} {
			if strings.HasPrefix(line, "watch") && refusesAll || strings.HasPrefix(line, "forward") && !refusesAll {
				continue
			}
			words := strings.Split(line, " ")
			command := exec.Command("exec-server", words[0])
			if words[0] == "__complete" || words[0] == "cast" {
				command.Args = append(command.Args, words[1])
				words = words[1:]
			}
			command.Args = append(append(command.Args, "--url", url), words[1:]...)
			command.Env = append(os.Environ(), "CODEX_HOME="+t.TempDir())
			out, err := command.CombinedOutput()
			if testing.Verbose() {
				t.Logf("%s: %v: %s", line, err, out)
			}
			if i := strings.IndexFunc(string(out), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }); i >= 0 {
				t.Errorf("%q prints control characters: %q", line, out)
			}
		}
	}
}

// TestCopyRefusesNames lets a server list files whose names lead out of the directory.
func TestCopyRefusesNames(t *testing.T) {
	for _, name := range []string{"..", ".", "", "../evil", "/evil", "a/b", "a\x00"} {
		url := fakeServer(t, func(m fakeRequest) ([]object, bool) {
			result := evilAnswers[m.Method]
			if m.Method == "fs/readDirectory" {
				result = object{"entries": []object{
					{"fileName": name, "isDirectory": false, "isFile": true, "kind": "file", "mode": 0o644, "size": 1, "modifiedAtMs": 1},
				}}
			}
			if result == nil {
				return []object{{"id": m.ID, "error": object{"code": -32603, "message": "no"}}}, false
			}
			return []object{{"id": m.ID, "result": result}}, false
		})
		around := t.TempDir()
		command := exec.Command("exec-server", "cp", "--url", url, ":/srv", filepath.Join(around, "dir"))
		out, err := command.CombinedOutput()
		if err == nil || !strings.Contains(string(out), strconv.Quote(name)) {
			t.Errorf("cp of %q: %v: %s", name, err, out)
		}
		if entries, err := os.ReadDir(around); err != nil || len(entries) > 1 {
			t.Errorf("cp of %q made %v, %v", name, entries, err)
		}
	}
}
