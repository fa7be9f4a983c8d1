package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/server"
	"execserver/transport"
)

// maxRelayed is how many clients connect serves at the same time. Each has an ssh.
const maxRelayed = 64

// serveClients listens, and gives each client a server of its own on the other machine.
func (c *connecting) serveClients(ctx context.Context) error {
	where, err := serve.ParseListen(c.listen, false)
	if err != nil {
		return err
	}
	if where.Kind == serve.ListenStdio || where.CheckOpen(false, false) != nil {
		return fmt.Errorf("cannot listen at %s: connect serves this machine alone; expected ws://127.0.0.1:PORT or unix:///PATH", cli.Printable(c.listen))
	}
	// A copy takes longer than clients wait, and an error is better seen here.
	session, err := c.start(ctx, nil)
	if err != nil {
		return err
	}
	session.End()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	places := make(chan struct{}, maxRelayed)
	srv := server.New(&server.Options{
		Log: log, Version: buildVersion(), Auth: server.Unauthenticated, AllowConfinedPeers: c.confined, ConfinedPeersHint: serve.AllowConfinedHint,
		Internal: server.Internal{Relay: func(conn transport.Conn) error {
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
				return c.relay(ctx, conn, log)
			default:
				return conn.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: fmt.Sprintf("%d clients are connected", maxRelayed)})
			}
		}},
	})
	ended := make(chan error, 2) // listeners
	if err := serve.Start(srv, log, where, serve.Flags{}, ended); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	closing, stop := context.WithTimeout(context.Background(), cli.CloseTimeout)
	defer stop()
	err = errors.Join(err, srv.Shutdown(closing))
	for range maxRelayed { // until no client has a place
		select {
		case places <- struct{}{}:
		case <-closing.Done():
		}
	}
	return err
}

// relay passes the messages of one client on until either side ends.
func (c *connecting) relay(ctx context.Context, client transport.Conn, log *slog.Logger) error {
	session, err := c.start(ctx, nil)
	if err != nil {
		log.Warn("cannot start a server for a client", "error", err)
		return client.Close(transport.Reason{Code: transport.CodeInternal, Text: cli.Printable(err.Error())})
	}
	end := func() error {
		session.End()
		return nil
	}
	far := transport.NewLines("stdio", session, session, end, 0)
	var once sync.Once
	closeBoth := func(reason transport.Reason) {
		once.Do(func() {
			_ = client.Close(reason)
			_ = far.Close(reason)
		})
	}
	defer context.AfterFunc(ctx, func() {
		closeBoth(transport.Reason{Code: transport.CodeGoingAway, Text: "connect is ending"})
	})()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := passMessages(far, client)
		closeBoth(transport.Reason{Code: transport.CodeNormal, Text: cli.Printable(err.Error())})
	})
	err = passMessages(client, far)
	closeBoth(transport.Reason{Code: transport.CodeGoingAway, Text: "the server has ended"})
	wg.Wait()
	return err
}

// passMessages passes messages on until one side fails.
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
