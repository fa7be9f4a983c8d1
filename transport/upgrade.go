package transport

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// CheckUpgrade checks that a request is a valid WebSocket upgrade, which a server does before
// it checks credentials. It returns 0 and "" for a valid one, and otherwise the status and the
// text of the refusal (docs/security.md, "How a client gets in").
func CheckUpgrade(r *http.Request) (status int, text string) {
	switch {
	case r.Method != http.MethodGet:
		return http.StatusMethodNotAllowed, "Request method must be `GET`"
	case !hasToken(r.Header, "Connection", "upgrade"):
		return http.StatusBadRequest, "Connection header did not include 'upgrade'"
	case !hasToken(r.Header, "Upgrade", "websocket"):
		return http.StatusBadRequest, "`Upgrade` header did not include 'websocket'"
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return http.StatusBadRequest, "`Sec-WebSocket-Version` header did not include '13'"
	case r.Header.Get("Sec-WebSocket-Key") == "":
		return http.StatusBadRequest, "`Sec-WebSocket-Key` header missing"
	}
	return 0, ""
}

func hasToken(h http.Header, name, token string) bool {
	for _, value := range h.Values(name) {
		for t := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// Upgrade answers a request that CheckUpgrade has accepted, and converts its connection to a
// WebSocket without a subprotocol or extensions. The Conn implements [Pinger], [Limited],
// [Growing] and [BinaryCarrier].
// limit is the size of the largest accepted message in bytes; 0 means
// DefaultMaxMessageBytes. If w has a method Upgraded() error, Upgrade calls it after the answer is
// sent and before it reads a message; an error ends the connection.
//
// Use Upgrade in an http.Handler that authenticates clients itself and passes the Conn to
// Server.ServeConn. Otherwise use Server.Handler.
func Upgrade(w http.ResponseWriter, r *http.Request, limit int64) (Conn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("upgrade to websocket: %w", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("upgrade to websocket: %w", err)
	}
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\n"+
		"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: %s\r\n\r\n",
		acceptKey(r.Header.Get("Sec-WebSocket-Key")))
	if after, ok := w.(interface{ Upgraded() error }); ok && err == nil {
		err = after.Upgraded()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("upgrade to websocket: %w", err)
	}
	return newWebSocket(conn, rw.Reader, false, r.RemoteAddr, limit), nil
}

// acceptKey returns the proof that the server understood the upgrade (RFC 6455 section
// 1.3).
func acceptKey(key string) string {
	const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	sum := sha1.Sum([]byte(key + guid))
	return base64.StdEncoding.EncodeToString(sum[:])
}
