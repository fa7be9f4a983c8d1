//go:build unix

package server_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
	"execserver/server"
)

const signingSecret = "0123456789abcdef0123456789abcdef"

// bearer connects to a WebSocket with a token.
type bearer struct {
	url, token string
}

func (b bearer) Connect() (transcript.Conn, error) {
	return transcript.DialWebSocket(context.Background(), b.url, nil, http.Header{"Authorization": {"Bearer " + b.token}})
}

// signedToken makes a JWT.
func signedToken(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(claims))
	mac := hmac.New(sha256.New, []byte(signingSecret))
	mac.Write([]byte(text))
	return text + "." + encode(mac.Sum(nil))
}

// ended waits for the end of a connection, and expects a code.
func (c *caller) ended(code int) (reason string) {
	c.t.Helper()
	await(c.t, "the end of the connection", c.Done())
	end, ok := errors.AsType[*transcript.EndedError](c.Err())
	if !ok || end.Code != code {
		c.t.Fatalf("the connection ended with %v, want code %d", c.Err(), code)
	}
	return end.Reason
}

// TestExpiry has a token expire while it is in use: its connection ends, and the
// session is resumed with a new token of the same principal, but not of another.
func TestExpiry(t *testing.T) {
	t.Parallel() // it mostly waits
	authenticator, err := server.NewAuthenticator(server.AuthConfig{SharedSecretFile: testkit.Secret(t, signingSecret), MaxClockSkew: -1})
	if err != nil {
		t.Fatal(err)
	}
	srv := serveWebSocket(t, &server.Options{Auth: authenticator}).(webSocketServer)
	as := func(name string, life time.Duration) bearer {
		return bearer{srv.url, signedToken(fmt.Sprintf(`{"exp":%d,"iss":"me","sub":%q}`, time.Now().Add(life).Unix(), name))}
	}
	c := newCaller(t, as("ann", 5*time.Second), "") // enough to connect
	neighbour := newCaller(t, as("ann", time.Hour), "")
	if got, want := c.ended(1008), "the credentials of this connection have expired; connect again with new ones to resume the session"; got != want {
		t.Errorf("closed because %q, want %q", got, want)
	}
	for _, other := range []string{"bob", "", "ann "} {
		p := params{"clientName": "test", "resumeSessionId": c.SessionID}
		err := connect(t, as(other, time.Hour)).initialize(p)
		if err == nil || err.Code != protocol.CodeInvalidRequest || err.Message != "unknown session id "+c.SessionID {
			t.Errorf("%q resumes: %v", other, err)
		}
		delete(p, "resumeSessionId")
		p["observeSessionId"] = c.SessionID
		if err := connect(t, as(other, time.Hour)).initialize(p); err == nil || err.Message != "unknown session id "+c.SessionID {
			t.Errorf("%q observes: %v", other, err)
		}
	}
	if again := newCaller(t, as("ann", time.Hour), c.SessionID); again.SessionID != c.SessionID {
		t.Errorf("resumed %s, want %s", again.SessionID, c.SessionID)
	}
	neighbour.result("environment/status", nil, new(struct{}))
}
