//go:build linux

package fleet

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// forBoth makes a certificate good for a server and for a client.
func forBoth(c *x509.Certificate) {
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
}

// routesWithTLS returns flags for TLS between the servers of a cluster.
func routesWithTLS(authority *testkit.Authority) []string {
	cert, key := authority.ServerWith(forBoth)
	return []string{"--cluster-cert", cert, "--cluster-key", key, "--cluster-ca", authority.File}
}

// TestRoutesWithTLS connects to a server whose cluster speaks TLS. The secret alone makes
// nobody one of them. That the servers of a cluster accept each other, TestCluster shows.
func TestRoutesWithTLS(t *testing.T) {
	ours := testkit.NewAuthority(t, "ours")
	nodes := newNodes(t, 1)
	startCluster(t, nodes, nil, append(routesWithTLS(ours), "--routes", "nats://"+testkit.FreeAddress(t))...) // the other one is not there yet

	good, theirs := pair(t, ours), pair(t, testkit.NewAuthority(t, "others"))
	for _, test := range []struct {
		as     string
		config *tls.Config
		want   bool
	}{
		{"a server of the cluster", &tls.Config{Certificates: []tls.Certificate{good}}, true},
		{"a server without a certificate", &tls.Config{}, false},
		{"a server with the certificate of another authority", &tls.Config{Certificates: []tls.Certificate{theirs}}, false},
		{"a server with TLS 1.1", &tls.Config{Certificates: []tls.Certificate{good}, MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11}, false},
		{"a server without TLS", nil, false},
	} {
		if test.config != nil {
			test.config.RootCAs = ours.Roots()
		}
		if got := becomesRoute(t, nodes[0].cluster, test.config); got != test.want {
			t.Errorf("%s becomes one of the cluster: %v", test.as, got)
		}
	}
}

// TestRoutesToImpostors has a server connect to others that pretend to be of its cluster. It
// tells them no secret.
func TestRoutesToImpostors(t *testing.T) {
	t.Parallel()
	ours := testkit.NewAuthority(t, "ours")
	theirs := pair(t, testkit.NewAuthority(t, "others"))
	impostors := map[string]*impostor{
		"a server with the certificate of another authority": newImpostor(t, &theirs),
		"a server without TLS":                               newImpostor(t, nil),
	}
	args := routesWithTLS(ours)
	for _, one := range impostors {
		args = append(args, "--routes", "nats://"+one.l.Addr().String())
	}
	startCluster(t, newNodes(t, 1), nil, args...)
	for what, one := range impostors {
		for range 3 {
			heard := ""
			testkit.Within(t, "an attempt to connect to "+what, func() { heard = <-one.heard })
			if strings.Contains(heard, "CONNECT") {
				t.Errorf("%s hears %q", what, heard)
			}
		}
	}
}

func pair(t *testing.T, a *testkit.Authority) tls.Certificate {
	t.Helper()
	cert, key := a.ServerWith(forBoth)
	made, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// becomesRoute connects to a NATS server as another server that has the secret, and reports
// whether it is accepted.
func becomesRoute(t *testing.T, address string, config *tls.Config) bool {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if config != nil {
		config.ServerName = "127.0.0.1"
		conn = tls.Client(conn, config)
	}
	fmt.Fprintf(conn, "CONNECT {\"user\":\"route\",\"pass\":%q,\"cluster\":\"exec-server\",\"verbose\":false,\"protocol\":1}\r\nINFO {\"server_id\":\"OTHER\",\"server_name\":\"other\",\"cluster\":\"exec-server\",\"proto\":1}\r\nPING\r\n", clusterSecret)
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil || strings.HasPrefix(line, "-ERR") {
			return false
		}
		if strings.HasPrefix(line, "PONG") {
			return true
		}
	}
}

// impostor is a server that pretends to be one of the cluster.
type impostor struct {
	l     net.Listener
	heard chan string // what each server that came has said
}

func newImpostor(t *testing.T, certificate *tls.Certificate) *impostor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	one := &impostor{l: l, heard: make(chan string, 1000)}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case one.heard <- listen(conn, certificate):
			default: // enough
			}
		}
	}()
	return one
}

// listen says to a server that it is one of the cluster, and returns what the server says.
func listen(conn net.Conn, certificate *tls.Certificate) string {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if certificate != nil {
		conn = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*certificate}})
	}
	_, _ = fmt.Fprint(conn, `INFO {"server_id":"IMPOSTOR","server_name":"impostor","cluster":"exec-server","proto":1,"auth_required":true}`+"\r\n")
	text, _ := io.ReadAll(conn) // it hangs up, or says nothing until the deadline
	return string(text)
}
