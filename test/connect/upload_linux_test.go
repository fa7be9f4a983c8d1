package connect

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/internal/testkit/slowlink"
	"execserver/protocol"
)

// hello connects, runs a command there, and returns what connect wrote to standard error.
func hello(t *testing.T, connect *exec.Cmd) (said string) {
	t.Helper()
	var stderr bytes.Buffer
	connect.Stderr = &stderr
	ctx, stop := context.WithTimeout(t.Context(), testkit.Patience)
	defer stop()
	env, err := client.Launch(ctx, connect, &client.Options{InitializeTimeout: testkit.Patience})
	if err != nil {
		t.Fatalf("connect: %v\n%s", err, stderr.Bytes())
	}
	out, err := env.Command(ctx, "/bin/sh", "-c", "echo hello from $HOME").Output()
	if err != nil || !strings.HasPrefix(string(out), "hello from /") {
		t.Errorf("the command printed %q: %v", out, err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	return stderr.String()
}

const copying = "copying exec-server for linux-"

// TestConnect connects to each account twice. The second time there is nothing to copy.
func TestConnect(t *testing.T) {
	b := newBox(t)
	for _, name := range []string{"bare", "plain", "csh", "fish", "noisy", "other", "reader", "long"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if said := hello(t, b.connect(t, name)); strings.Count(said, copying) != 1 {
				t.Errorf("the first time, connect said %q", said)
			}
			found := programs(b.cache(name))
			if len(found) != 1 {
				t.Fatalf("there are %q", found)
			}
			if info, err := os.Stat(found[0]); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the program has %v, %v", info.Mode(), err)
			}
			if said := hello(t, b.connect(t, name)); strings.Contains(said, copying) {
				t.Errorf("the second time, connect said %q", said)
			}
			b.vanished(t, name)
			for range 2 {
				if said := hello(t, b.lasting(t, name)); said != "" {
					t.Errorf("to a server that lasts, connect said %q", said)
				}
			}
		})
	}
}

// TestSettingsForPeople has settings of the host that are for people.
func TestSettingsForPeople(t *testing.T) {
	b := newBox(t)
	connect := b.connect(t, "plain")
	at := slices.Index(connect.Args, "ssh") + 1
	connect.Args = slices.Insert(connect.Args, at, "-o", "RemoteCommand=exec bash -l", "-o", "RequestTTY=force")
	hello(t, connect)
}

// TestSilence checks the notice about a machine on which no shell answers.
func TestSilence(t *testing.T) {
	b := newBox(t)
	connect := b.connect(t, "silent")
	stderr, err := connect.StderrPipe()
	must(t, err)
	must(t, connect.Start())
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), "no shell has answered over ssh") {
	}
	if err := lines.Err(); err != nil || !strings.Contains(lines.Text(), "a startup file that reads standard input") {
		t.Errorf("connect said %q, %v", lines.Text(), err)
	}
	must(t, connect.Process.Signal(syscall.SIGTERM))
	_ = connect.Wait()
	b.vanished(t, "silent")
}

// TestRemoteDir names another directory than the cache, which is relative to the home.
func TestRemoteDir(t *testing.T) {
	b := newBox(t)
	hello(t, b.connect(t, "plain", "--remote-dir", "~/it's here"))
	if found := programs(filepath.Join(site, "plain", "it's here")); len(found) != 1 {
		t.Errorf("there are %q", found)
	}
	if found := programs(b.cache("plain")); len(found) != 0 {
		t.Errorf("the cache has %q", found)
	}
}

// TestTwoAtOnce has several clients connect to an account that has no program.
func TestTwoAtOnce(t *testing.T) {
	b := newBox(t)
	var wg sync.WaitGroup
	for range 3 {
		connect := b.connect(t, "plain")
		wg.Go(func() { hello(t, connect) })
	}
	wg.Wait()
	if found := programs(b.cache("plain")); len(found) != 1 {
		t.Errorf("the cache has %q", found)
	}
}

// TestBrokenUpload cuts the link in the middle of the program.
func TestBrokenUpload(t *testing.T) {
	b := newBox(t)
	link, err := slowlink.Listen("127.0.0.1:0", b.sshd.Address, slowlink.Options{BitsPerSecond: 20e6, BreaksAfter: 1 << 20})
	must(t, err)
	defer link.Close()
	_, port, _ := strings.Cut(link.Addr(), ":")
	connect := b.connectThrough(t, port, "plain", "--ephemeral")
	stdin, err := connect.StdinPipe() // stays open
	must(t, err)
	defer stdin.Close()
	var said bytes.Buffer
	connect.Stderr = &said
	must(t, connect.Start())
	testkit.Within(t, "the end of connect", func() { _ = connect.Wait() })
	if code := connect.ProcessState.ExitCode(); code != 255 || !strings.Contains(said.String(), "ended before it started a server") {
		t.Errorf("connect ended with %d and said %q", code, said.String())
	}
	b.vanished(t, "plain")
	if entries, _ := os.ReadDir(b.cache("plain")); len(entries) != 0 { // not even hidden ones
		t.Errorf("the upload has left %v", entries)
	}
	if said := hello(t, b.connect(t, "plain")); !strings.Contains(said, copying) {
		t.Errorf("the next connect said %q", said)
	}
}

// TestCutProgram connects to an account whose program has lost its end.
func TestCutProgram(t *testing.T) {
	b := newBox(t)
	hello(t, b.connect(t, "plain"))
	b.vanished(t, "plain") // a program that runs cannot be cut
	found := programs(b.cache("plain"))
	if len(found) != 1 {
		t.Fatalf("there are %q", found)
	}
	whole, err := os.Stat(found[0])
	must(t, err)
	must(t, os.Truncate(found[0], whole.Size()/2))
	if said := hello(t, b.connect(t, "plain")); !strings.Contains(said, copying) {
		t.Errorf("connect said %q", said)
	}
	if now, err := os.Stat(found[0]); err != nil || now.Size() != whole.Size() {
		t.Errorf("the program has %v, %v", now, err)
	}
	b.vanished(t, "plain")
}

// TestUploadReportsProgress checks that a client learns how much of the program has arrived,
// before the server answers it.
func TestUploadReportsProgress(t *testing.T) {
	b := newBox(t)
	link, err := slowlink.Listen("127.0.0.1:0", b.sshd.Address, slowlink.Options{BitsPerSecond: 20e6})
	must(t, err)
	defer link.Close()
	_, port, _ := strings.Cut(link.Addr(), ":")
	connect := b.connectThrough(t, port, "plain", "--ephemeral")
	stdin, err := connect.StdinPipe()
	must(t, err)
	stdout, err := connect.StdoutPipe()
	must(t, err)
	must(t, connect.Start())
	_, err = io.WriteString(stdin, `{"id":1,"method":"initialize","params":{"clientName":"test"}}`+"\n")
	must(t, err)
	var told []protocol.InitializeProgressParams
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		must(t, err)
		var message struct {
			ID     int
			Method string
			Params protocol.InitializeProgressParams
		}
		must(t, json.Unmarshal(line, &message))
		if message.ID == 1 {
			break
		}
		if message.Method != "initialize/progress" {
			t.Errorf("connect wrote %s", line)
		}
		told = append(told, message.Params)
	}
	for i, p := range told {
		if p.Total != told[0].Total || p.Bytes > p.Total || i > 0 && p.Bytes < told[i-1].Bytes {
			t.Errorf("connect has told %v", told)
		}
	}
	// At this rate it takes more than two seconds.
	if n := len(told); n < 2 || told[n-1].Bytes != told[n-1].Total {
		t.Errorf("connect has told %v", told)
	}
	must(t, stdin.Close())
	must(t, connect.Wait())
	b.vanished(t, "plain")
}

// TestOldPrograms looks which programs the next upload removes.
func TestOldPrograms(t *testing.T) {
	b := newBox(t)
	old := time.Now().Add(-40 * 24 * time.Hour)
	user := b.accounts["plain"]
	made := func(name string, used time.Time) string {
		dir := filepath.Join(b.cache("plain"), name)
		must(t, os.MkdirAll(dir, 0o700))
		content, err := os.ReadFile("/bin/sleep")
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "exec-server"), content, 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "used"), nil, 0o600))
		must(t, os.Chtimes(filepath.Join(dir, "used"), used, used))
		for _, path := range []string{dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir)), filepath.Join(dir, "used"), filepath.Join(dir, "exec-server")} {
			must(t, os.Chown(path, user.uid, user.uid))
		}
		return dir
	}
	unused := made(strings.Repeat("a", 64), old)
	recent := made(strings.Repeat("b", 64), time.Now())
	running := made(strings.Repeat("c", 64), old)
	other := made("documents", old)
	broken := filepath.Join(b.cache("plain"), ".new-broken")
	must(t, os.Mkdir(broken, 0o700))
	must(t, os.Chown(broken, user.uid, user.uid))
	must(t, os.Chtimes(broken, old, old))
	sleep := b.sshd.As("plain").Command(b.sshd.Port(), filepath.Join(running, "exec-server"), "600")
	must(t, sleep.Start())
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	testkit.WaitFor(t, testkit.Patience, func() error {
		found, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range found {
			if to, _ := os.Readlink(exe); to == filepath.Join(running, "exec-server") {
				pid, _ := strconv.Atoi(strings.Split(exe, "/")[2])
				t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
				return nil
			}
		}
		return errTooFew
	})
	hello(t, b.connect(t, "plain"))
	for dir, kept := range map[string]bool{unused: false, broken: false, recent: true, running: true, other: true} {
		if _, err := os.Stat(dir); (err == nil) != kept {
			t.Errorf("%s: %v, want it kept: %v", dir, err, kept)
		}
	}
}
