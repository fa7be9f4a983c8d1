// Program ssh runs a command on another machine, through an SSH tunnel to the unix socket
// on which an exec-server listens there. It needs no port and no token:
//
//	ssh HOST:PORT SOCKET PROGRAM [ARG...]
//
// If the tunnel breaks while the command runs, the program makes another one and loses
// nothing.
//
// The variable SSH_USER holds the user, SSH_KEY the file with the private key, and
// SSH_KNOWN_HOSTS the file that identifies the host.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"execserver/client"
	"execserver/transport"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) < 3 {
		return errors.New("usage: ssh HOST:PORT SOCKET PROGRAM [ARG...]")
	}
	config, err := configuration()
	if err != nil {
		return err
	}
	dial := func(ctx context.Context) (transport.Conn, error) {
		stream, err := open(ctx, config, args[0], args[1])
		if err != nil {
			return nil, err
		}
		return transport.NewStream(stream), nil
	}
	env, err := client.Connect(ctx, dial, nil)
	if err != nil {
		return err
	}
	defer env.Close()
	command := env.Command(ctx, args[2], args[3:]...)
	command.Stdout, command.Stderr = stdout, os.Stderr
	return command.Run()
}

func configuration() (*ssh.ClientConfig, error) {
	text, err := os.ReadFile(os.Getenv("SSH_KEY"))
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, err
	}
	known, err := knownhosts.New(os.Getenv("SSH_KNOWN_HOSTS"))
	if err != nil {
		return nil, err
	}
	return &ssh.ClientConfig{
		User: os.Getenv("SSH_USER"), Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: known,
	}, nil
}

// tunnel is a connection to a unix socket on the other machine.
type tunnel struct {
	net.Conn
	ssh *ssh.Client
}

// Close closes the SSH connection, and with it the connection through it.
func (t tunnel) Close() error { return t.ssh.Close() }

// open connects to address by SSH, and through that to a unix socket. ctx bounds the time
// for connecting.
func open(ctx context.Context, config *ssh.ClientConfig, address, socket string) (io.ReadWriteCloser, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	// The handshake of package ssh takes no context.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	sshConn, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c := ssh.NewClient(sshConn, channels, requests)
	stream, err := c.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return tunnel{stream, c}, nil
}
