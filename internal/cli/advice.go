package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"strings"
	"syscall"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/peer"
	"execserver/transport"
)

// ErrorLine returns an error on one line, with advice if there is any. A server may have written
// the error, so the line contains no control characters.
func ErrorLine(err error) string {
	text := OneLine(err.Error())
	if dial, ok := errors.AsType[*client.DialError](err); ok && LacksList(err) && IsServerURL(dial.URL) {
		return OneLine(dial.URL) + " does not list its processes, like the servers of Codex: it lacks " + CapSessionList +
			"; list the processes of the machine instead, with exec-server run and ps -ef, or " + ToServe
	}
	if advice := Advice(err); advice != "" {
		text += "; " + advice
	}
	return text
}

func Advice(err error) string {
	switch unsupported, _ := errors.AsType[*client.UnsupportedError](err); {
	case unsupported == nil:
	case unsupported.Capability == CapSessionList:
		return "name an exec-server that listens: one that was started for a single client has no other sessions"
	case unsupported.Capability == "tcpOpen", unsupported.Capability == "sandbox":
		return ToServe
	}
	switch dial, dialing := errors.AsType[*client.DialError](err); {
	case dialing:
		return DialAdvice(dial)
	case errors.Is(err, exec.ErrNotFound):
		return "install it there, or give its path"
	case errors.Is(err, environments.ErrNone):
		return "set CODEX_EXEC_SERVER_URL, write environments.toml, or use --url"
	case errors.Is(err, syscall.EADDRINUSE):
		return "choose another port here (0 picks a free one)"
	case errors.As(err, new(*client.LostError)):
		return "the command may continue until the server ends the session"
	}
	return ""
}

// ToServe is for what the servers of Codex cannot do.
const ToServe = "start this server there: exec-server serve"

// LacksList reports whether a server cannot list its sessions.
func LacksList(err error) bool {
	unsupported, ok := errors.AsType[*client.UnsupportedError](err)
	return ok && unsupported.Capability == CapSessionList
}

// CapSessionList is the capability of servers that list their sessions.
const CapSessionList = "sessionList"

// DialAdvice returns advice for a failed connection, or "".
func DialAdvice(err *client.DialError) string {
	refused, _ := errors.AsType[*transport.RefusedError](err)
	closed, _ := errors.AsType[*transport.PeerClosedError](err)
	other, _ := errors.AsType[*peer.ServerError](err)
	called, calling := errors.AsType[*os.SyscallError](err)
	switch {
	case refused != nil && LacksMachine(refused.Text), closed != nil && LacksMachine(closed.Reason.Text):
		return ToList
	case refused != nil && strings.HasPrefix(refused.Text, "this is a gateway"):
		return "" // the answer has the advice
	case err.Status == 403 && refused != nil && strings.Contains(refused.Text, peer.Remedy):
		return "" // the answer has the advice
	case other != nil:
		return "if that program is the right one, use --server-user " + OneLine(other.User) + "; otherwise find out why it uses the port"
	case err.Status == 401 || err.Status == 403:
		return "give the server's token with --token-file, or in environments.toml"
	case err.Status == http.StatusBadRequest && strings.Contains(err.Error(), SaysTLS):
		return "use wss:// for a server with TLS"
	case err.Status == http.StatusServiceUnavailable && refused != nil && refused.Text != "":
		return "" // the answer has the reason
	case err.Status != 0:
		return "is this the URL of an exec-server?"
	case calling && errors.Is(called, syscall.ECONNREFUSED) && isGatewayURL(err.URL):
		return "no gateway listens there; start it with exec-fleet gateway, or check the address"
	case calling && (errors.Is(called, syscall.ECONNREFUSED) || errors.Is(called, syscall.ENOENT)):
		return "start a server there: exec-server serve --listen URL"
	case calling && errors.Is(called, os.ErrPermission):
		return "use the account that the server runs as"
	case errors.As(err, new(*net.DNSError)):
		return "check the name of the host"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "use ws:// for a server without TLS"
	case errors.As(err, new(x509.HostnameError)):
		return "use a name that the certificate has, or a certificate for this one"
	case errors.As(err, new(x509.CertificateInvalidError)):
		return "renew the certificate of the server; if it is valid, set the clock of this machine"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "name the certificate of its authority by SSL_CERT_FILE"
	case errors.Is(err, context.DeadlineExceeded):
		return "check the address and the network"
	}
	return ""
}

// LacksMachine reports whether a gateway answers that it has no such machine.
func LacksMachine(answer string) bool {
	return strings.HasPrefix(answer, "no such machine is connected") ||
		strings.HasPrefix(answer, "no machine is connected") ||
		strings.HasPrefix(answer, "no machine with these labels is connected")
}

// SaysTLS is the answer of package net/http to a client without TLS.
const SaysTLS = "HTTP request to an HTTPS server"

// ToList is shown when the machine does not exist.
const ToList = "exec-fleet ls lists the machines"

// isGatewayURL reports whether a URL is that of a machine of a gateway.
func isGatewayURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (strings.HasSuffix(u.Path, "/any") || path.Base(path.Dir(u.Path)) == "env")
}

// IsServerURL reports whether a text begins as the URL of a server does.
func IsServerURL(text string) bool {
	scheme, rest, _ := strings.Cut(text, "://")
	return (scheme == "ws" || scheme == "wss" || scheme == "unix") && rest != ""
}
