package server_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/transport"
)

// TestReadsDuringManyBlocks has as many blocks under way as are wanted again and
// again. A whole file and the beginning of a log are read all the same.
func TestReadsDuringManyBlocks(t *testing.T) {
	const inFlight = 12
	dir := t.TempDir()
	large := putFile(t, dir+"/large", strings.Repeat("x", 8<<20))
	// A pipe that holds nothing: every reply waits until it is read.
	ours, theirs := net.Pipe()
	lines := func(conn net.Conn) transport.Conn { return transport.NewLines("lines", conn, conn, conn.Close, 0) }
	p := connectOver(t, newFileServer(t, nil), lines(ours), lines(theirs), nil)
	start := fileParams{
		"processId": "log", "argv": []string{"/bin/sh", "-c", "head -c 4000000 /dev/zero; echo end >&2"},
		"cwd": "file:///", "env": fileParams{}, "tty": false,
	}
	p.call("process/start", start, nil)
	p.call("process/wait", fileParams{"processId": "log"}, nil)
	for i := range inFlight {
		p.call("fs/open", fileParams{"handleId": fmt.Sprint("h", i), "path": large}, nil)
	}
	busy := make(chan struct{})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var blocks []<-chan answer
		for i := 0; ; i++ {
			select {
			case <-stop:
				for _, block := range blocks {
					<-block
				}
				return
			default:
			}
			block := p.send("fs/readBlock", fileParams{"handleId": fmt.Sprint("h", i%inFlight), "offset": 0, "len": 1 << 20})
			if i == 10*inFlight {
				close(busy)
			}
			if blocks = append(blocks, block); len(blocks) > inFlight {
				<-blocks[0]
				blocks = blocks[1:]
			}
		}
	}()
	<-busy
	testkit.Within(t, "a file during blocks", func() {
		p.call("fs/readFile", fileParams{"path": large}, nil)
	})
	testkit.Within(t, "the beginning of a log during blocks", func() {
		p.call("process/read", fileParams{"processId": "log", "maxBytes": 1000}, nil)
	})
	close(stop)
	<-done
}

// TestReadGrowingFile reads a log to which lines are appended all the time.
func TestReadGrowingFile(t *testing.T) {
	path := putFile(t, filepath.Join(t.TempDir(), "log"), strings.Repeat("0123456789abcde\n", 2<<20/16))
	log, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer log.Close()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := log.WriteString("another line...\n"); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(50 * time.Microsecond)
		}
	}()
	p := connectFiles(t, newFileServer(t, nil))
	last := 0
	for range 8 {
		var read struct{ DataBase64 []byte }
		testkit.Within(t, "a file that grows", func() {
			p.call("fs/readFile", fileParams{"path": path}, &read)
		})
		if n := len(read.DataBase64); n < last || n%16 != 0 || !bytes.HasPrefix(read.DataBase64[n-16:], []byte("another line...\n")) && n > 2<<20 {
			t.Fatalf("read %d bytes after %d", n, last)
		}
		last = len(read.DataBase64)
	}
	close(stop)
	<-done
}

// quiet says that the machine does nothing else, so that memory can be held to bounds.
var quiet = os.Getenv("QUIET_MACHINE") != ""

// holdMemory watches how many bytes of the heap are in use, garbage aside. The function
// that it returns ends that, and fails the test if they were too many. What is allocated while
// the collector runs counts as used, which is much on a busy machine: it does nothing unless
// the machine is quiet.
func holdMemory(t *testing.T) (stop func()) {
	const limit = 400 << 20
	if !quiet {
		return func() {}
	}
	runtime.GC()
	percent := debug.SetGCPercent(20) // it is known at every collection
	stopping, peak := make(chan struct{}), make(chan uint64)
	go func() {
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		most := uint64(0)
		for {
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
			select {
			case <-stopping:
				peak <- most
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() {
		debug.SetGCPercent(percent)
		close(stopping)
		most := <-peak
		t.Logf("%d MiB were used at a time", most>>20)
		if most > limit {
			t.Errorf("that is more than %d", limit>>20)
		}
	}
}

// TestFilesWithoutSize reads many large files that say that they are empty, and
// takes no answer meanwhile. Memory stays within bounds.
func TestFilesWithoutSize(t *testing.T) {
	reads := 2
	if quiet {
		reads = 12
	}
	p := connectFiles(t, newFileServer(t, nil))
	stop := holdMemory(t)
	var answers []<-chan answer
	for range reads {
		answers = append(answers, p.send("fs/readFile", fileParams{"path": "/proc/self/pagemap"}))
	}
	for _, arrives := range answers {
		err := p.take(arrives, nil)
		if err == nil || !strings.Contains(err.Error(), "file is too large to read: limit is") {
			t.Errorf("a file of many gigabytes: %v", err)
		}
	}
	stop()
	// A small one of the kind is read whole.
	want, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var read struct{ DataBase64 []byte }
	p.call("fs/readFile", fileParams{"path": "/proc/self/cmdline"}, &read)
	if !bytes.Equal(read.DataBase64, want) {
		t.Errorf("read %q, want %q", read.DataBase64, want)
	}
}
