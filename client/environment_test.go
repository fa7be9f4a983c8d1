//go:build unix

package client_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

func TestInfo(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		info := env.Info()
		home, _ := os.UserHomeDir()
		dir, _ := os.Getwd()
		if info.OS != "linux" && info.OS != "macos" || info.Dir != dir || info.HomeDir != home ||
			info.TempDir != os.TempDir() || info.Shell == "" || !strings.HasPrefix(info.ShellPath, "/") {
			t.Errorf("%+v", info)
		}
		if info.Version == "" {
			t.Error("no version")
		}
	})
}

// Close ends what runs, tells everybody, and nothing starts afterwards.
func TestClose(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		running := env.Command(background(t), "sh", "-c", "echo $$; exec sleep 3600")
		stdout, err := running.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := running.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 20)
		n, err := stdout.Read(line)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
		if err != nil {
			t.Fatal(err)
		}
		if err := env.Err(); err != nil {
			t.Errorf("Err: %v", err)
		}
		testkit.Within(t, "Close", func() {
			if err := env.Close(); err != nil {
				t.Error(err)
			}
		})
		testkit.Gone(t, pid)
		testkit.Within(t, "Wait", func() {
			if err := running.Wait(); err == nil {
				t.Error("Wait: no error")
			}
		})
		if _, err := io.ReadAll(stdout); err != nil && !errors.Is(err, client.ErrClosed) {
			t.Errorf("reading on: %v", err)
		}
		if err := child(env, "exit", "0").Run(); !errors.Is(err, client.ErrClosed) {
			t.Errorf("Run: %v", err)
		}
		if err := env.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if err := env.Err(); !errors.Is(err, client.ErrClosed) {
			t.Errorf("Err: %v", err)
		}
		select {
		case <-env.Done():
		default:
			t.Error("Done is open")
		}
	})
}

// Close does not wait for anybody who does not read.
func TestCloseWhileOutputWaits(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := child(env, "flood", strconv.Itoa(1<<30))
		stdout, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := stdout.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		testkit.Within(t, "Close", func() { _ = env.Close() })
		testkit.Within(t, "Wait", func() { _ = c.Wait() })
	})
}

func serveTarget(t *testing.T) *httptest.Server {
	stop := make(chan struct{})
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Method", r.Method)
			w.Header().Set("X-Got", r.Header.Get("X-Sent"))
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write(body)
		case "/redirect":
			http.Redirect(w, r, "/echo", http.StatusFound)
		case "/big":
			block := make([]byte, 1<<20)
			for range 8 {
				_, _ = w.Write(block)
			}
		case "/stream":
			for i := range 3 {
				_, _ = fmt.Fprintln(w, i)
				w.(http.Flusher).Flush()
			}
			select {
			case <-r.Context().Done():
			case <-stop: // the released server goes on when nobody reads any more
			}
		}
	}))
	t.Cleanup(func() {
		close(stop)
		target.Close()
	})
	return target
}

func TestTransport(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		target := serveTarget(t)
		httpClient := &http.Client{Transport: env.Transport()}
		request, err := http.NewRequestWithContext(background(t), http.MethodPost, target.URL+"/echo", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Sent", "value")
		response, err := httpClient.Do(request)
		if err != nil && errors.Is(err, errors.ErrUnsupported) {
			t.Skip("the server has no http/request")
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || string(body) != "hello" || response.StatusCode != http.StatusTeapot ||
			response.Header.Get("X-Got") != "value" || response.Header.Get("X-Method") != "POST" {
			t.Errorf("%d %v %q, %v", response.StatusCode, response.Header, body, err)
		}
		_ = response.Body.Close()

		get := func(path string) *http.Response {
			t.Helper()
			response, err := httpClient.Get(target.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			return response
		}
		response = get("/redirect")
		if response.StatusCode != http.StatusTeapot || response.Request.URL.Path != "/echo" {
			t.Errorf("redirected to %s: %d", response.Request.URL, response.StatusCode)
		}
		_ = response.Body.Close()
		response = get("/big")
		if n, err := io.Copy(io.Discard, response.Body); err != nil || n != 8<<20 {
			t.Errorf("%d bytes, %v", n, err)
		}
		_ = response.Body.Close()
		response = get("/stream")
		buf := make([]byte, 6)
		if _, err := io.ReadFull(response.Body, buf); err != nil || string(buf) != "0\n1\n2\n" {
			t.Errorf("%q, %v", buf, err)
		}
		_ = response.Body.Close()
		if _, err := response.Body.Read(buf); err == nil {
			t.Error("read after Close")
		}
		if _, err := httpClient.Get("http://127.0.0.1:1/"); err == nil {
			t.Error("nobody answered")
		}
	})
}
