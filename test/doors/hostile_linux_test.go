package doors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// graceTimeout is the time that a peer has to send its request, and again to initialize
// the connection. slack allows for a busy machine.
const (
	graceTimeout = 10 * time.Second
	slack        = 8 * time.Second
)

// TestRequests sends malformed requests. The server answers each with a status and closes
// the connection.
func TestRequests(t *testing.T) {
	tokenFile, token := secret(t, os.Geteuid())
	d := serve(t, os.Geteuid(), "--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", tokenFile)
	host := "Host: " + d.address
	good := upgrade(d.address, token)
	replace := func(from, to string) string { return strings.Replace(good, from, to, 1) }
	long := strings.Repeat("x", 100<<10)
	for _, test := range []struct {
		name, request string
		want          int
	}{
		{"nothing but a line end", "\r\n\r\n", 400},
		{"not HTTP", "\x00\x01\x02\x03\r\n\r\n", 400},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
		{"SSH", "SSH-2.0-OpenSSH_9.9\r\n\r\n", 400},
		{"a message", `{"id":1,"method":"initialize","params":{"clientName":"x"}}` + "\r\n\r\n", 400},
		{"HTTP/0.9", "GET /\r\n\r\n", 400},
		{"HTTP/1.0", replace("HTTP/1.1", "HTTP/1.0"), 101}, // the version of an upgrade is not looked at
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 403},
		{"HTTP/3.0", replace("HTTP/1.1", "HTTP/3.0"), 505},
		{"HTTP/1.9", replace("HTTP/1.1", "HTTP/1.9"), 101},
		{"no version", replace(" HTTP/1.1", ""), 400},
		{"no host", strings.Replace(good, host+"\r\n", "", 1), 400},
		{"two hosts", replace(host, host+"\r\n"+host), 400},
		{"a long target", replace("GET / ", "GET /"+long+" "), 431},
		{"a long header", replace("\r\n\r\n", "\r\nX: "+long+"\r\n\r\n"), 431},
		{"many headers", replace("\r\n\r\n", "\r\n"+strings.Repeat("X: y\r\n", 20000)+"\r\n\r\n"), 431},
		{"a header without name", replace("\r\n\r\n", "\r\n: x\r\n\r\n"), 400},
		{"a header with a space", replace("\r\n\r\n", "\r\nX : x\r\n\r\n"), 400},
		{"a header with a null", replace("\r\n\r\n", "\r\nX: \x00\r\n\r\n"), 400},
		{"a folded header", replace("\r\n\r\n", "\r\nX: y\r\n z\r\n\r\n"), 101},
		{"two lengths", replace("\r\n\r\n", "\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400},
		{"a negative length", replace("\r\n\r\n", "\r\nContent-Length: -1\r\n\r\n"), 400},
		{"a length that is no number", replace("\r\n\r\n", "\r\nContent-Length: x\r\n\r\n"), 400},
		{"an unknown encoding", replace("\r\n\r\n", "\r\nTransfer-Encoding: gzip\r\n\r\n"), 501},
		{"an encoding twice", replace("\r\n\r\n", "\r\nTransfer-Encoding: chunked, chunked\r\n\r\n"), 501},
		{"an expectation", replace("\r\n\r\n", "\r\nExpect: 200-nothing\r\n\r\n"), 417},
		{"CONNECT", "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 403},
		{"as a proxy", "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", 403},
		{"asterisk", "OPTIONS * HTTP/1.1\r\n" + host + "\r\n\r\n", 200}, // by package net/http itself
		{"OPTIONS", "OPTIONS / HTTP/1.1\r\n" + host + "\r\n\r\n", 405},
		{"TRACE", "TRACE / HTTP/1.1\r\n" + host + "\r\n\r\n", 405},
		{"DELETE", "DELETE / HTTP/1.1\r\n" + host + "\r\n\r\n", 405},
		{"an unknown method", "PWN / HTTP/1.1\r\n" + host + "\r\n\r\n", 405},
		{"a method in small letters", replace("GET", "get"), 405},
		{"a body", "POST / HTTP/1.1\r\n" + host + "\r\nContent-Length: 5\r\n\r\nhello", 405},
		{"a probe by POST", "POST /readyz HTTP/1.1\r\n" + host + "\r\nContent-Length: 0\r\n\r\n", 405},
		{"a path above", get("/../../etc/passwd", host), 404},
		{"a path that is encoded", get("/%2e%2e/etc/passwd", host), 404},
		{"a probe below another path", get("/x/../readyz", host), 404},
		{"debug", get("/debug/pprof/", host), 404},
		{"plain", get("/", host), 400},
		{"no connection", replace("Connection: Upgrade\r\n", ""), 400},
		{"connection to keep", replace("Connection: Upgrade", "Connection: keep-alive"), 400},
		{"no upgrade", replace("Upgrade: websocket\r\n", ""), 400},
		{"upgrade to HTTP/2", replace("Upgrade: websocket", "Upgrade: h2c"), 400},
		{"version 12", replace("Version: 13", "Version: 12"), 400},
		{"version 0", replace("Version: 13", "Version: 0"), 400},
		{"no version of the protocol", replace("Sec-WebSocket-Version: 13\r\n", ""), 400},
		{"no key", replace("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", ""), 400},
		{"an empty key", replace("AAAAAAAAAAAAAAAAAAAAAA==", ""), 400},
		{"no token", upgrade(d.address, ""), 401},
		{"another token", upgrade(d.address, token+"x"), 401},
		{"a part of the token", upgrade(d.address, token[:20]), 401},
		{"two tokens", upgrade(d.address, token, "Authorization: Bearer "+token), 401},
		{"the token as Basic", upgrade(d.address, "", "Authorization: Basic "+token), 401},
		{"the token in a cookie", upgrade(d.address, "", "Cookie: token="+token), 401},
		{"the token in the query", strings.Replace(upgrade(d.address, ""), "GET /", "GET /?token="+strings.ReplaceAll(token, " ", "+"), 1), 401},
		{"the token as a protocol", upgrade(d.address, "", "Sec-WebSocket-Protocol: bearer, "+strings.ReplaceAll(token, " ", "-")), 401},
		{"a page", upgrade(d.address, token, "Origin: http://"+d.address), 403},
		{"rebinding", upgrade("evil.example", token), 403},
		{"good", good, 101},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.DialTimeout("tcp", d.address, testkit.Patience)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
			go io.WriteString(conn, test.request)
			got, body := answer(conn)
			if got != test.want {
				t.Fatalf("got %d %q, want %d", got, body, test.want)
			}
			if got == 101 {
				return
			}
			if n, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection is still open, %d bytes later", n)
			}
		})
	}
}

// TestSlow is slow in every way. The server closes each connection in time.
func TestSlow(t *testing.T) {
	t.Parallel() // it mostly waits
	d := serve(t, os.Geteuid(), "--listen", "ws://127.0.0.1:0")
	session := connected(t, d)
	header := upgrade(d.address, "")
	var all sync.WaitGroup
	for name, test := range map[string]struct {
		first, drip string
	}{
		"nothing":            {"", ""},
		"half a line":        {"GET / HT", ""},
		"half a header":      {header[:60], ""},
		"header by drips":    {"GET / HTTP/1.1\r\nX: ", "y"},
		"headers by drips":   {"GET / HTTP/1.1\r\n", "X: y\r\n"},
		"no body":            {"POST / HTTP/1.1\r\nHost: " + d.address + "\r\nContent-Length: 1000000\r\n\r\n", ""},
		"body by drips":      {"POST / HTTP/1.1\r\nHost: " + d.address + "\r\nContent-Length: 1000000\r\n\r\n", "x"},
		"chunks by drips":    {"POST / HTTP/1.1\r\nHost: " + d.address + "\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"},
		"a probe with body":  {"GET /readyz HTTP/1.1\r\nHost: " + d.address + "\r\nContent-Length: 1000000\r\n\r\n", "x"},
		"another after one":  {"GET /readyz HTTP/1.1\r\nHost: " + d.address + "\r\n\r\n", "G"},
		"no initialize":      {header, ""},
		"pings alone":        {header, "\x89\x80\x00\x00\x00\x00"},
		"half a frame":       {header + "\x81\xfe", ""},
		"a frame by drips":   {header + "\x81\xff\x00\x00\x00\x00\x00\x00\xff\x00\x00\x00\x00\x00", "x"},
		"other methods":      {header, frame(`{"id":1,"method":"environment/status"}`)},
		"what is no message": {header, frame(`[]`)},
	} {
		all.Go(func() {
			conn, err := net.DialTimeout("tcp", d.address, testkit.Patience)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			begun := time.Now()
			_ = conn.SetDeadline(begun.Add(graceTimeout + slack))
			_, _ = io.WriteString(conn, test.first)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				tick := time.NewTicker(200 * time.Millisecond)
				defer tick.Stop()
				for test.drip != "" {
					select {
					case <-tick.C:
						_, _ = io.WriteString(conn, test.drip)
					case <-stop:
						return
					}
				}
			})
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: still open after %v", name, time.Since(begun))
			}
			close(stop)
			wg.Wait()
		})
	}
	settleIn(t, session)
	all.Wait()
}

// frame returns the frame of a client's message.
func frame(message string) string {
	b := []byte{0x81}
	if len(message) < 126 {
		b = append(b, 0x80|byte(len(message)))
	} else {
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(len(message)))
	}
	return string(append(b, 0, 0, 0, 0)) + message
}

// TestBeforeInitialize checks the limits before initialize, and that they end there.
func TestBeforeInitialize(t *testing.T) {
	d := serve(t, os.Geteuid(), "--listen", "ws://127.0.0.1:0")
	initialize := frame(`{"id":1,"method":"initialize","params":{"clientName":"x"}}`) + frame(`{"method":"initialized"}`)
	status := `{"id":2,"method":"environment/status"}`
	long := frame(strings.Repeat(" ", 100<<10) + status)
	for _, test := range []struct {
		name, text string
		ready      bool
	}{
		{"a long message", long + initialize + frame(status), false},
		{"many messages", strings.Repeat(frame(status), 2000) + initialize + frame(status), false},
		{"a few messages", strings.Repeat(frame(status), 20) + initialize + frame(status), true},
		{"a long message after it", initialize + long, true},
		{"fragments", strings.Replace(frame(strings.Repeat(" ", 40<<10)), "\x81", "\x01", 1) + strings.Replace(frame(strings.Repeat(" ", 40<<10)), "\x81", "\x80", 1) + initialize + frame(status), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.DialTimeout("tcp", d.address, testkit.Patience)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(graceTimeout - time.Second))
			go io.WriteString(conn, upgrade(d.address, "")+test.text)
			part := make([]byte, 64<<10)
			var text strings.Builder
			for !strings.Contains(text.String(), `"status":"ready"`) {
				n, err := conn.Read(part)
				text.Write(part[:n])
				if err != nil {
					if errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("still open: %s", &text)
					}
					break
				}
			}
			if ready := strings.Contains(text.String(), `"status":"ready"`); ready != test.ready {
				t.Errorf("ready: %v; %s", ready, &text)
			}
		})
	}
}

// TestWrongTokens has many wrong tokens refused, which costs one line of the log; the right one
// from the same address gets in meanwhile.
func TestWrongTokens(t *testing.T) {
	t.Parallel() // it mostly waits
	tokenFile, token := secret(t, os.Geteuid())
	d := serve(t, os.Geteuid(), "--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", tokenFile)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4 {
				if status, body := knock(d.address, upgrade(d.address, token+"x")); status != 401 {
					t.Errorf("got %d %s", status, body)
				}
			}
		})
	}
	for range 10 {
		if status, body := knock(d.address, upgrade(d.address, token)); status != 101 {
			t.Errorf("the right token gets %d %s", status, body)
		}
	}
	wg.Wait()
	if n := strings.Count(d.log.String(), "connection refused"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, d.log)
	}
}

// TestBadHandshakes fill no log: what is no TLS is refused, and logged once.
func TestBadHandshakes(t *testing.T) {
	certificate, key := testkit.NewAuthority(t, "doors").Server()
	tokenFile, _ := secret(t, os.Geteuid())
	d := serve(t, os.Geteuid(), "--listen", "wss://127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key,
		"--ws-auth", "capability-token", "--ws-token-file", tokenFile)
	for i := range 40 {
		conn, err := net.DialTimeout("tcp", d.address, testkit.Patience)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		_, _ = io.WriteString(conn, []string{"SSH-2.0-OpenSSH_9.9\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"}[i%2])
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is still open")
		}
		_ = conn.Close()
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(d.log.String(), `reason="TLS handshake: `) {
			return fmt.Errorf("the log does not tell: %s", d.log)
		}
		return nil
	})
	if n := strings.Count(d.log.String(), "msg=\"connection refused"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, d.log)
	}
}
