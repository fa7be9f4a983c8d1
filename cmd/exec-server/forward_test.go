//go:build unix

package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// startForward starts exec-server forward, and returns the addresses where it listens.
func startForward(t *testing.T, url string, args ...string) (p *program, addresses []string) {
	t.Helper()
	command := exec.Command("exec-server", append([]string{"forward", "--url", url}, args...)...)
	p, err := launch(command, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	line := regexp.MustCompile(`(?m)^(\S+) leads to .*$`)
	var found [][]string
	err = p.stdout.await(testkit.Patience, func(text string) bool {
		found = line.FindAllStringSubmatch(text, -1)
		return len(found) == len(args)
	})
	if err != nil {
		t.Fatalf("%v: %s%s", err, p.stdout.text(), p.stderr.text())
	}
	for _, f := range found {
		addresses = append(addresses, f[1])
	}
	return p, addresses
}

func chaCha(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

// sumOf returns the checksum of everything that a reader has.
func sumOf(t *testing.T, r io.Reader) []byte {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		t.Error(err)
	}
	return h.Sum(nil)
}

// TestForwardHTTP has a real HTTP server on the far side, 16 MiB to it and 16 MiB from it
// at the same time, and a page over a unix socket.
func TestForwardHTTP(t *testing.T) {
	const size = 16 << 20
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		var sum []byte
		var wg sync.WaitGroup
		wg.Go(func() { sum = sumOf(t, r.Body) })
		_, _ = io.CopyN(w, chaCha(1), size)
		wg.Wait()
		_, _ = w.Write(sum)
	}))
	t.Cleanup(web.Close)
	socket := filepath.Join(testkit.SocketDir(t), "web")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	onSocket := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "over the socket")
	}))
	onSocket.Listener = l
	onSocket.Start()
	t.Cleanup(onSocket.Close)

	s := newServer(t)
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	p, at := startForward(t, s.url, "0:"+port, "0:127.0.0.1:1", "0:"+socket)
	request, err := http.NewRequest(http.MethodPost, "http://"+at[0], io.LimitReader(chaCha(2), size))
	if err != nil {
		t.Fatal(err)
	}
	transport := new(http.Transport)
	t.Cleanup(transport.CloseIdleConnections)
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if got := sumOf(t, io.LimitReader(response.Body, size)); !bytes.Equal(got, sumOf(t, io.LimitReader(chaCha(1), size))) {
		t.Error("what came is not what the server sent")
	}
	got, err := io.ReadAll(response.Body)
	if want := sumOf(t, io.LimitReader(chaCha(2), size)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the server received something else: %v", err)
	}

	page, err := http.Get("http://" + at[2])
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(page.Body)
	_ = page.Body.Close()
	if err != nil || string(text) != "over the socket" {
		t.Errorf("over the socket: %q, %v", text, err)
	}

	conn, err := net.Dial("tcp", at[1])
	if err == nil { // or the connection was reset before this program saw it
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	if err == nil || err == io.EOF {
		t.Errorf("a connection to nobody: %v", err)
	}
	const want = "cannot connect to 127.0.0.1:1: connection refused (os error 111)"
	if err := p.stderr.await(testkit.Patience, func(text string) bool { return strings.Contains(text, want) }); err != nil {
		t.Errorf("%v: %s", err, p.stderr.text())
	}
	if err := p.signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 128+int(syscall.SIGINT))
}

// TestForwardOverRestart ends the server, and starts another one in its place.
func TestForwardOverRestart(t *testing.T) {
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	go func() {
		for {
			conn, err := far.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello\n")
			_ = conn.Close()
		}
	}()
	url := "unix://" + filepath.Join(testkit.SocketDir(t), "s")
	s := newServer(t, "--listen", url)
	p, at := startForward(t, url, "0:"+far.Addr().String())
	hello := func() {
		t.Helper()
		conn, err := net.Dial("tcp", at[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "hello\n" {
			t.Errorf("got %q, %v: %s", line, err, p.stderr.text())
		}
	}
	hello()
	s.kill()
	if err := p.stderr.await(testkit.Patience, func(text string) bool { return strings.Contains(text, "is lost") }); err != nil {
		t.Fatalf("%v: %s", err, p.stderr.text())
	}
	newServer(t, "--listen", url)
	hello() // waits until there is a connection
	if err := p.stderr.await(testkit.Patience, func(text string) bool { return strings.Contains(text, "server is back") }); err != nil {
		t.Errorf("%v: %s", err, p.stderr.text())
	}
}

// TestForwardJSON checks what a program reads that lets forward pick a port, and that the port leads there.
func TestForwardJSON(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "here")
	}))
	t.Cleanup(web.Close)
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	server := newServer(t)
	p, err := launch(exec.Command("exec-server", "forward", "--url", server.url, "--json", "0:"+port), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	var said struct{ Listen, Network, Address string }
	if err := json.Unmarshal([]byte(p.url), &said); err != nil || said.Network != "tcp" || said.Address != "localhost:"+port {
		t.Fatalf("%v: %s", err, p.url)
	}
	page, err := http.Get("http://" + said.Listen)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(page.Body)
	_ = page.Body.Close()
	if err != nil || string(text) != "here" {
		t.Errorf("over the port: %q, %v", text, err)
	}
}
