package main

import (
	"context"
	"crypto/tls"
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
	"execserver/transport"
)

// advise returns an error in one line that says what to do about it, if that is known. A
// server may have written the error; the line has nothing that controls a terminal.
func advise(err error) string {
	text := oneLine(err.Error())
	if dial, ok := errors.AsType[*client.DialError](err); ok && lacksList(err) && isServerURL(dial.URL) {
		return oneLine(dial.URL) + " does not tell what runs there, as the servers of Codex do not: it lacks " + capSessionList +
			"; list the processes of the machine instead, with exec-server run and ps -ef, or " + adviceToServe
	}
	if advice := adviceFor(err); advice != "" {
		text += "; " + advice
	}
	return text
}

func adviceFor(err error) string {
	switch unsupported, _ := errors.AsType[*client.UnsupportedError](err); {
	case unsupported == nil:
	case unsupported.Capability == capSessionList:
		return "name an exec-server that listens: one that was started for a single client has no other sessions"
	case unsupported.Capability == "tcpOpen":
		return adviceToServe
	}
	switch dial, dialing := errors.AsType[*client.DialError](err); {
	case dialing:
		return adviseDialing(dial)
	case errors.Is(err, exec.ErrNotFound):
		return "install it there, or give its path"
	case errors.Is(err, environments.ErrNone):
		return "set CODEX_EXEC_SERVER_URL, write environments.toml, or use --url"
	case errors.Is(err, syscall.EADDRINUSE):
		return "choose another port here (0 picks a free one)"
	case errors.As(err, new(*client.ExitMissingError)):
		return "the command may go on there until the server ends the session"
	}
	return ""
}

// adviceToServe is for what the servers of Codex cannot do.
const adviceToServe = "start this server there: exec-server serve"

// lacksList reports whether a server has no list of what runs there.
func lacksList(err error) bool {
	unsupported, ok := errors.AsType[*client.UnsupportedError](err)
	return ok && unsupported.Capability == capSessionList
}

// capSessionList is the capability of servers that list their sessions.
const capSessionList = "sessionList"

// adviseDialing says what to do when connecting failed, or returns "" if unknown.
func adviseDialing(err *client.DialError) string {
	if advice := adviseNATS(err); advice != "" {
		return advice
	}
	refused, _ := errors.AsType[*transport.RefusedError](err)
	closed, _ := errors.AsType[*transport.PeerClosedError](err)
	called, calling := errors.AsType[*os.SyscallError](err)
	switch {
	case refused != nil && lacksMachine(refused.Text), closed != nil && lacksMachine(closed.Reason.Text):
		return adviceToList
	case refused != nil && strings.HasPrefix(refused.Text, "this is a gateway"):
		return "" // it says how to go on
	case err.Status == 401 || err.Status == 403:
		return "give the server's token with --token-file, or in environments.toml"
	case err.Status == http.StatusBadRequest && strings.Contains(err.Error(), saysTLS):
		return "use wss:// for a server with TLS"
	case err.Status == http.StatusServiceUnavailable && refused != nil && refused.Text != "":
		return "" // it says what it lacks
	case err.Status != 0:
		return "is this the URL of an exec-server?"
	case calling && errors.Is(called, syscall.ECONNREFUSED) && isGatewayURL(err.URL):
		return "no gateway listens there; start it with exec-server gateway, or check the address"
	case calling && (errors.Is(called, syscall.ECONNREFUSED) || errors.Is(called, syscall.ENOENT)):
		return "start a server there: exec-server serve --listen URL"
	case calling && errors.Is(called, os.ErrPermission):
		return "use the account that the server runs as"
	case errors.As(err, new(*net.DNSError)):
		return "check the name of the host"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "use ws:// for a server without TLS"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "name the certificate of its authority by SSL_CERT_FILE"
	case errors.Is(err, context.DeadlineExceeded):
		return "check the address, and what is between"
	}
	return ""
}

// lacksMachine reports whether a gateway answers that it has no such machine.
func lacksMachine(answer string) bool {
	return strings.HasPrefix(answer, "no such machine is connected") ||
		strings.HasPrefix(answer, "no machine is connected") ||
		strings.HasPrefix(answer, "no machine with these labels is connected")
}

// saysTLS is what package net/http says to a client that lacks it.
const saysTLS = "HTTP request to an HTTPS server"

// adviceToList is for who has named a machine that is not there.
const adviceToList = "exec-server fleet ls lists the machines"

// isGatewayURL reports whether a URL is that of a machine of a gateway.
func isGatewayURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (strings.HasSuffix(u.Path, "/any") || path.Base(path.Dir(u.Path)) == "env")
}

// adviceToMakeDirectory is for clients that name the directories of their own machine, as
// Codex does. Their users see it in the error of the server.
const adviceToMakeDirectory = "the directory is not on this machine: have the server make it with --workspace PATH, or show another one there with --workspace PATH=DIRECTORY"
