package transcript

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// web is an HTTP server on loopback for one scenario. It answers a request for a page with
// the bytes in the scenario, and any other request with a copy of the request.
type web struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	pages map[string]page
	conns map[net.Conn]string // and the paths they asked for last
	asked chan struct{}       // closed at the next request
	ended bool
}

// page is an answer. If it is open, more text follows.
type page struct {
	text string
	open bool
}

func newWeb() (*web, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &web{listener: listener, pages: make(map[string]page), conns: make(map[net.Conn]string), asked: make(chan struct{})}
	w.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			w.conns[conn] = ""
			if w.ended {
				_ = conn.Close()
			}
			w.mu.Unlock()
			w.wg.Go(func() { w.serve(conn) })
		}
	})
	return w, nil
}

func (w *web) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	w.ended = true
	for conn := range w.conns {
		_ = conn.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// serve answers the requests of a connection.
func (w *web) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(r)
		var body []byte
		if err == nil {
			body, err = io.ReadAll(request.Body)
		}
		if err != nil {
			_ = conn.Close()
			return
		}
		answer := w.ask(conn, request, body)
		_, _ = io.WriteString(conn, answer.text)
		if answer.open {
			return
		}
		if !complete(answer.text, request) {
			_ = conn.Close()
			return
		}
	}
}

// ask notes a request and returns its answer.
func (w *web) ask(conn net.Conn, request *http.Request, body []byte) page {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[conn] = request.URL.Path
	close(w.asked)
	w.asked = make(chan struct{})
	answer, ok := w.pages[request.URL.Path]
	if !ok {
		text := describe(request, body)
		answer.text = fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	}
	return answer
}

// complete reports whether an answer itself tells its length.
func complete(text string, request *http.Request) bool {
	response, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), request)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err == nil && !response.Close
}

// describe formats a request: the first line without the version, the header fields in
// lower case and sorted by name, an empty line, and the body.
func describe(r *http.Request, body []byte) string {
	lines := []string{"host: " + r.Host}
	for name, values := range r.Header {
		for _, value := range values {
			lines = append(lines, strings.ToLower(name)+": "+value)
		}
	}
	slices.SortStableFunc(lines, func(a, b string) int {
		nameA, _, _ := strings.Cut(a, ":")
		nameB, _, _ := strings.Cut(b, ":")
		return strings.Compare(nameA, nameB)
	})
	return r.Method + " " + r.RequestURI + "\n" + strings.Join(lines, "\n") + "\n\n" + string(body)
}

// more sends text to the client that has asked for a path, and waits for one if need be.
func (w *web) more(path, text string, timeout time.Duration) error {
	expired := time.After(timeout)
	for {
		w.mu.Lock()
		asked := w.asked
		for conn, p := range w.conns {
			if p == path {
				w.mu.Unlock()
				_, err := io.WriteString(conn, text)
				return err
			}
		}
		w.mu.Unlock()
		select {
		case <-asked:
		case <-expired:
			return fmt.Errorf("nobody asks for %s", path)
		}
	}
}

// end ends the answers to a path.
func (w *web) end(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn, asked := range w.conns {
		if asked == path {
			_ = conn.Close()
			delete(w.conns, conn)
		}
	}
}

// startWeb starts the HTTP server of a scenario that mentions one.
func (r *runner) startWeb() error {
	if text := strings.Join(r.scenario.lines, "\n"); !strings.Contains(text, "${web") && !strings.Contains(text, `"$webPort"`) {
		return nil
	}
	var err error
	if r.web, err = newWeb(); err != nil {
		return err
	}
	address := r.web.listener.Addr().String()
	r.vars["web"], r.vars["webHost"] = "http://"+address, address
	r.vars["webPort"] = json.Number(strconv.Itoa(r.web.listener.Addr().(*net.TCPAddr).Port))
	return nil
}

// page performs a line for the HTTP server.
func (r *runner) page(st step) error {
	if r.web == nil {
		return errors.New("the scenario never mentions ${web}")
	}
	path, argument := st.words[1], st.words[2]
	if st.words[0] == "end" {
		r.web.end(path)
		return nil
	}
	argument, open := strings.CutPrefix(argument, "open ")
	text, err := strconv.Unquote(argument)
	if err == nil {
		text, err = r.vars.expand(text)
	}
	if err != nil {
		return fmt.Errorf("a page needs a quoted text: %w", err)
	}
	if st.words[0] == "more" {
		return r.web.more(path, text, r.opts.Timeout)
	}
	r.web.mu.Lock()
	defer r.web.mu.Unlock()
	r.web.pages[path] = page{text, open}
	return nil
}
