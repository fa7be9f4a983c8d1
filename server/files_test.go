//go:build unix

package server_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
	"execserver/server"
)

func writeParams(path, text string) fileParams {
	return fileParams{"path": path, "dataBase64": base64.StdEncoding.EncodeToString([]byte(text))}
}

// TestChangesKeepTheirOrder sends changes without waiting for one of them.
func TestChangesKeepTheirOrder(t *testing.T) {
	p := connectFiles(t, newFileServer(t, nil))
	dir := t.TempDir()
	var answers []<-chan answer
	send := func(method string, params fileParams) { answers = append(answers, p.send(method, params)) }
	const rounds = 200
	for i := range rounds {
		// Each of these fails unless the one before it is done.
		from, to := fmt.Sprint(dir, "/from", i), fmt.Sprint(dir, "/to", i)
		send("fs/createDirectory", fileParams{"path": from, "recursive": false})
		send("fs/writeFile", writeParams(from+"/f", strings.Repeat("x", 10_000)))
		send("fs/rename", fileParams{"sourcePath": from, "destinationPath": to})
		send("fs/copy", fileParams{"sourcePath": to + "/f", "destinationPath": to + "/g", "recursive": false})
		send("fs/open", fileParams{"handleId": "h", "path": to + "/g", "mode": "replace"})
		send("fs/writeBlock", fileParams{"handleId": "h", "offset": 0, "chunk": "aGk="})
		send("fs/close", fileParams{"handleId": "h"})
		send("fs/rename", fileParams{"sourcePath": to + "/g", "destinationPath": fmt.Sprint(dir, "/last")})
		send("fs/remove", fileParams{"path": to + "/f", "force": false})
		send("fs/remove", fileParams{"path": to, "recursive": false})
		// The same path again and again: the last one stays.
		send("fs/writeFile", writeParams(dir+"/count", fmt.Sprint(i)))
	}
	for i, arrives := range answers {
		if err := p.take(arrives, nil); err != nil {
			t.Fatalf("change %d of round %d: %v", i%11, i/11, err)
		}
	}
	if got := contentOf(t, dir+"/count"); got != fmt.Sprint(rounds-1) {
		t.Errorf("the last write was %s", got)
	}
	if got := contentOf(t, dir+"/last"); got != "hi" {
		t.Errorf("a file written in blocks holds %q", got)
	}
	if left, err := filepath.Glob(dir + "/*"); len(left) != 2 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestHandleOrder sends what belongs to many handles without waiting.
func TestHandleOrder(t *testing.T) {
	p := connectFiles(t, newFileServer(t, nil))
	file := putFile(t, t.TempDir()+"/f", "0123456789")
	var opens, reads, closes []<-chan answer
	for i := range 100 {
		id := fmt.Sprint(i % 7)
		opens = append(opens, p.send("fs/open", fileParams{"handleId": id, "path": file}))
		reads = append(reads, p.send("fs/readBlock", fileParams{"handleId": id, "offset": i % 10, "len": 1}))
		closes = append(closes, p.send("fs/close", fileParams{"handleId": id}))
	}
	for i := range opens {
		var block struct{ Chunk []byte }
		if err := errors.Join(p.take(opens[i], nil), p.take(reads[i], &block), p.take(closes[i], nil)); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprint(i % 10); string(block.Chunk) != want {
			t.Errorf("block %d is %q, want %q", i, block.Chunk, want)
		}
	}
}

// TestSpecialFilesAnswer gives what is no file to every method. None may wait.
func TestSpecialFilesAnswer(t *testing.T) {
	p := connectFiles(t, newFileServer(t, nil))
	dir := t.TempDir()
	if err := syscall.Mkfifo(dir+"/fifo", 0o666); err != nil {
		t.Fatal(err)
	}
	socketDir := testkit.SocketDir(t)
	l, err := net.Listen("unix", socketDir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fine := map[string]bool{ // what works, and how
		"fs/canonicalize": true, "fs/walk": true, "fs/watchMissing": true, "fs/getMetadata": true,
		"fs/parent": true, "fs/join": true, "fs/writeFile /dev/zero": true, "fs/copy onto /dev/zero": true,
	}
	for name, path := range map[string]string{"fifo": dir + "/fifo", "socket": socketDir + "/s", "/dev/zero": "/dev/zero"} {
		file := putFile(t, dir+"/f", "x")
		walk := fileParams{"maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": true}
		for method, params := range map[string]fileParams{
			"fs/getMetadata":           {"path": path},
			"fs/readFile":              {"path": path},
			"fs/readFile nofollow":     {"path": path, "followSymlinks": false},
			"fs/readDirectory":         {"path": path},
			"fs/canonicalize":          {"path": path},
			"fs/walk":                  {"path": path, "options": walk},
			"fs/writeFile":             writeParams(path, "x"),
			"fs/writeFile nofollow":    {"path": path, "dataBase64": "", "followSymlinks": false},
			"fs/writeFile condition":   {"path": path, "dataBase64": "", "expectedSha256": strings.Repeat("0", 64)},
			"fs/createDirectory":       {"path": path},
			"fs/createDirectory below": {"path": path + "/d"},
			"fs/remove below":          {"path": path + "/f"},
			"fs/copy":                  {"sourcePath": path, "destinationPath": dir + "/g", "recursive": true},
			"fs/copy onto":             {"sourcePath": file, "destinationPath": path, "recursive": false},
			"fs/rename below":          {"sourcePath": file, "destinationPath": path + "/f"},
			"fs/open":                  {"handleId": "r" + name, "path": path},
			"fs/open replace":          {"handleId": "w" + name, "path": path, "mode": "replace"},
			"fs/watch":                 {"watchId": name, "path": path},
			"fs/watchMissing":          {"watchId": time.Now().UnixNano(), "missing": []string{path}, "present": path},
			"fs/parent":                {"path": path},
			"fs/join":                  {"basePath": path, "path": "f"},
		} {
			word, _, _ := strings.Cut(method, " ")
			start := time.Now()
			err := p.try(word, params, nil)
			// It takes microseconds; what waits, waits for good.
			if took := time.Since(start); took >= testkit.Patience {
				t.Errorf("%s of %s took %v", method, name, took)
			}
			if works := fine[method] || fine[method+" "+name]; (err == nil) != works {
				t.Errorf("%s of %s: %v", method, name, err)
			}
		}
	}
}

// TestFilesGoWithTheConnection counts descriptors.
func TestFilesGoWithTheConnection(t *testing.T) {
	srv := newFileServer(t, nil)
	dir := t.TempDir()
	file := putFile(t, dir+"/f", "x")
	p := connectFiles(t, srv)
	before := testkit.Descriptors(t)
	for i := range 20 {
		p.call("fs/open", fileParams{"handleId": fmt.Sprint("r", i), "path": file}, nil)
		p.call("fs/open", fileParams{"handleId": fmt.Sprint("w", i), "path": fmt.Sprint(dir, "/", i), "mode": "replace"}, nil)
	}
	p.call("fs/watchMissing", fileParams{"watchId": 1, "missing": []string{dir + "/none"}}, nil)
	if n := testkit.Descriptors(t); n < before+40 {
		t.Errorf("%d descriptors with 40 files open, %d before", n, before)
	}
	p.close()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := testkit.Descriptors(t); n > before {
			return fmt.Errorf("%d descriptors are open, %d before", n, before)
		}
		return nil
	})
}

// TestLargestAnswer reads a file of the largest size that is read whole.
func TestLargestAnswer(t *testing.T) {
	p := connectFiles(t, newFileServer(t, nil))
	file := t.TempDir() + "/f"
	putFile(t, file, "")
	const limit = filesystem.DefaultReadLimit
	if err := os.Truncate(file, limit); err != nil {
		t.Fatal(err)
	}
	// An answer of more than 64 MiB would end the connection.
	var result struct{ DataBase64 []byte }
	p.call("fs/readFile", fileParams{"path": file}, &result)
	if len(result.DataBase64) != limit || bytes.Count(result.DataBase64, []byte{0}) != limit {
		t.Errorf("%d bytes", len(result.DataBase64))
	}
}

// TestListingsAreBounded lists a large directory with names that are hard to
// spell.
func TestListingsAreBounded(t *testing.T) {
	const most, count = 500, 600
	dir := testkit.MemoryDir(t)
	name := strings.Repeat("\x01", 100)
	for i := range count {
		f, err := os.Create(fmt.Sprint(dir, "/", name, i))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	srv := newFileServer(t, nil)
	server.LimitListings(srv, most*4) // an entry is an object of three
	p := connectFiles(t, srv)
	var list struct {
		Entries   []struct{ FileName string }
		Truncated bool
	}
	p.call("fs/readDirectory", fileParams{"path": dir}, &list)
	if n := len(list.Entries); n != most || !list.Truncated {
		t.Errorf("%d entries, truncated %v", n, list.Truncated)
	}
	seen := make(map[string]bool)
	for _, e := range list.Entries {
		if seen[e.FileName] || !strings.HasPrefix(e.FileName, name) {
			t.Fatalf("entry %q", e.FileName)
		}
		seen[e.FileName] = true
	}
	var walked struct {
		Entries   []struct{ Path string }
		Truncated bool
	}
	options := fileParams{"maxDepth": 1, "maxDirectories": 10, "maxEntries": most, "followDirectorySymlinks": false}
	p.call("fs/walk", fileParams{"path": dir, "options": options}, &walked)
	if n := len(walked.Entries); n != most || !walked.Truncated {
		t.Errorf("%d entries, truncated %v", n, walked.Truncated)
	}
}
