// Package scripts has commands for the scripts of more than one program.
package scripts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"execserver/internal/testkit"
)

// WantArgs fails the script unless ok. text is how the command is used.
func WantArgs(ts *testscript.TestScript, ok bool, text string) {
	if !ok {
		ts.Fatalf("usage: %s", text)
	}
}

// Exits runs a program that must end with the code.
func Exits(ts *testscript.TestScript, neg bool, args []string) {
	WantArgs(ts, !neg && len(args) >= 2, "exits CODE PROGRAM [ARG...]")
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// Awaits runs a program until it succeeds and prints the pattern.
func Awaits(ts *testscript.TestScript, neg bool, args []string) {
	WantArgs(ts, !neg && len(args) >= 2, "awaits PATTERN PROGRAM [ARG...]")
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		printed := ts.ReadFile("stdout")
		if err == nil && pattern.MatchString(printed) {
			return
		}
		if time.Since(begun) > testkit.Patience {
			ts.Fatalf("%q is not printed: %v", args[0], err)
		}
	}
}

// Mode checks the permissions of a file.
func Mode(ts *testscript.TestScript, neg bool, args []string) {
	WantArgs(ts, !neg && len(args) == 2, "mode FILE PERMISSIONS")
	info, err := os.Lstat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[1] {
		ts.Fatalf("permissions %s, want %s", got, args[1])
	}
}

// Configure makes a URL the environment "box" of Codex, with a token.
func Configure(ts *testscript.TestScript, neg bool, args []string) {
	WantArgs(ts, !neg && len(args) == 2, "configure FILE URL")
	text := fmt.Sprintf("[[environments]]\nid = \"box\"\nurl = %q\nauth_bearer_token = \"a secret of the test\"\n", args[1])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// Certificate makes a certificate for 127.0.0.1.
func Certificate(ts *testscript.TestScript, neg bool, args []string) {
	WantArgs(ts, !neg && len(args) == 2, "certificate CERT KEY")
	cert, key, err := MakeCertificate()
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), cert, 0o644))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), key, 0o600))
}

// MakeCertificate makes a self-signed certificate and its key, in PEM.
func MakeCertificate() (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	return cert, key, nil
}
