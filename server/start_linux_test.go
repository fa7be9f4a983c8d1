package server_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/server"
)

// TestStartsOnADeadFileSystem starts programs whose files, interpreters and
// directories are on a file system that does not answer. Nothing else waits.
func TestStartsOnADeadFileSystem(t *testing.T) {
	if !testkit.InMountNamespace(t) {
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as where there are two processors
	srv := server.New(nil)
	dead, revive := mountDead(t)
	script := t.TempDir() + "/script"
	if err := os.WriteFile(script, []byte("#!"+dead+"/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := connectFiles(t, srv)
	started := 0
	start := func(dir string, argv ...string) <-chan answer {
		started++
		return p.send("process/start", fileParams{
			"processId": fmt.Sprint("p", started), "argv": argv, "cwd": dir, "env": fileParams{}, "tty": started%2 == 0,
		})
	}
	var stuck []<-chan answer
	for range 4 {
		stuck = append(stuck, start("/", script), start("/", dead+"/program"), start(dead, "/bin/true"))
	}
	begin := time.Now()
	for range 10 {
		p.call("fs/getMetadata", fileParams{"path": "/"}, nil)
		if err := p.take(start("/", "/bin/true"), nil); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("others waited for %v", took)
	}
	unanswered(t, "start", stuck)
	revive()
	for i, arrives := range stuck {
		if err := p.take(arrives, nil); err == nil {
			t.Errorf("start %d on a dead file system succeeded", i)
		}
	}
	p.close()
	testkit.Shutdown(t, srv, 10*time.Second)
}
