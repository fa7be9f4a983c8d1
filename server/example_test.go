//go:build unix

package server_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"execserver/client"
	"execserver/server"
	"execserver/transport"
)

// A web server also serves the protocol, to clients with a token, and with sandboxes. Its
// main function calls RunHelper first.
func Example() {
	ctx := context.Background()
	auth, err := server.NewAuthenticator(server.AuthConfig{Token: "correct horse battery staple"})
	if err != nil {
		log.Fatal(err)
	}
	sandbox := server.NewSandbox(server.SandboxOptions{})
	defer sandbox.Close()
	srv := server.New(&server.Options{Auth: auth, Sandbox: sandbox})
	mux := http.NewServeMux()
	mux.Handle("/exec/", http.StripPrefix("/exec", srv.Handler()))
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go web.Serve(listener)

	env, err := client.Dial(ctx, "ws://"+listener.Addr().String()+"/exec/", &client.Options{Token: "correct horse battery staple"})
	if err != nil {
		log.Fatal(err)
	}
	out, err := env.Command(ctx, "echo", "hello").Output()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
	if err := env.Close(); err != nil {
		log.Fatal(err)
	}

	// The web server does not end WebSocket connections: end both servers.
	if err := web.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	if err := srv.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: hello
}

// Any stream of bytes carries the protocol, such as a channel of SSH. Whoever passes a
// connection to ServeOnly has authenticated its client.
func ExampleServer_ServeOnly() {
	ctx := context.Background()
	srv := server.New(nil)
	near, far := net.Pipe()
	go srv.ServeOnly(transport.NewStream(far))

	env, err := client.New(ctx, transport.NewStream(near), nil)
	if err != nil {
		log.Fatal(err)
	}
	out, err := env.Command(ctx, "echo", "hello").Output()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
	if err := env.Close(); err != nil {
		log.Fatal(err)
	}
	if err := srv.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: hello
}
