package connect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/internal/extension"
	"execserver/server"
	"execserver/transport"
)

// maxRelayed bounds the clients that connect serves concurrently. Each has its own ssh.
const maxRelayed = 64

// serveClients listens, and connects each client to a server on the other machine.
func (c *connecting) serveClients(ctx context.Context) error {
	address, err := serve.ParseListen(c.listen, false)
	if err != nil {
		return err
	}
	if address.Kind == serve.ListenStdio || address.CheckOpen(false, false) != nil {
		return fmt.Errorf("cannot listen at %s: connect serves only this machine; expected ws://127.0.0.1:PORT or unix:///PATH", cli.Printable(c.listen))
	}
	// Upload the program first: it takes longer than clients wait, and the user sees errors.
	session, err := c.open(ctx, nil)
	if err != nil {
		return err
	}
	session.End()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	slots := make(chan struct{}, maxRelayed)
	srv := server.New(&server.Options{
		Log: log, Version: c.version, Auth: server.Unauthenticated, AllowConfinedPeers: c.confined, ConfinedPeersHint: serve.AllowConfinedHint,
		Extensions: &extension.Options{Relay: func(conn transport.Conn) error {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				return c.relay(ctx, conn, log)
			default:
				return conn.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: fmt.Sprintf("%d clients are connected", maxRelayed)})
			}
		}},
	})
	ended := make(chan error, 2) // listeners
	if err := serve.Start(srv, log, address, serve.Flags{}, ended); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	closing, stop := context.WithTimeout(context.Background(), cli.CloseTimeout)
	defer stop()
	err = errors.Join(err, srv.Shutdown(closing))
	for range maxRelayed { // until the last client has left
		select {
		case slots <- struct{}{}:
		case <-closing.Done():
		}
	}
	return err
}

// relay relays the messages of one client until either side ends.
func (c *connecting) relay(ctx context.Context, client transport.Conn, log *slog.Logger) error {
	session, err := c.open(ctx, nil)
	if err != nil {
		log.Warn("cannot connect a client to the server", "error", err)
		return client.Close(transport.Reason{Code: transport.CodeInternal, Text: cli.Printable(err.Error())})
	}
	end := func() error {
		session.End()
		return nil
	}
	remote := transport.NewLines("stdio", session, session, end, 0)
	var once sync.Once
	closeBoth := func(reason transport.Reason) {
		once.Do(func() {
			_ = client.Close(reason)
			_ = remote.Close(reason)
		})
	}
	defer context.AfterFunc(ctx, func() {
		closeBoth(transport.Reason{Code: transport.CodeGoingAway, Text: "connect is ending"})
	})()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := passMessages(remote, client)
		closeBoth(transport.Reason{Code: transport.CodeNormal, Text: cli.Printable(err.Error())})
	})
	err = passMessages(client, remote)
	closeBoth(transport.Reason{Code: transport.CodeGoingAway, Text: "the server has ended"})
	wg.Wait()
	return err
}

// passMessages copies messages until one side fails.
func passMessages(to, from transport.Conn) error {
	if binary, ok := from.(transport.BinaryCarrier); ok {
		binary.AcceptBinary()
	}
	var buf []byte
	for {
		msg, err := from.Read(buf)
		if err != nil {
			return err
		}
		if err := to.Write(msg); err != nil {
			return err
		}
		buf = msg
	}
}
