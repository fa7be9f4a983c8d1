// Program server is a web server that also serves the exec-server protocol, below /exec/.
// Clients need the bearer token in the variable TOKEN, and may use sandboxes.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"execserver/server"
)

func main() {
	server.RunHelper() // first, because a server with sandboxes starts this program as its helper
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	auth, err := server.NewAuthenticator(server.AuthConfig{Token: os.Getenv("TOKEN")})
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	sandbox := server.NewSandbox(server.SandboxOptions{Log: log})
	defer sandbox.Close()
	commands := server.New(&server.Options{Log: log, Auth: auth, Sandbox: sandbox})

	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	mux.Handle("/exec/", http.StripPrefix("/exec", commands.Handler()))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("ws://%s/exec/\n", listener.Addr())
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	// Shutdown of the web server does not end WebSocket connections, so end both.
	ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, web.Shutdown(ending), commands.Shutdown(ending))
}
