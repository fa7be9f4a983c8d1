//go:build unix

package client_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"

	"execserver/client"
	"execserver/server"
	"execserver/transport"
)

// A program leaves a command to the next one.
func ExampleEnvironment_Attach() {
	ctx := context.Background()
	srv := server.New(nil) // a server of its own, which outlives both programs
	defer srv.Shutdown(ctx)
	dial := func(context.Context) (transport.Conn, error) {
		ours, theirs := net.Pipe()
		go srv.ServeConn(transport.NewStream(theirs))
		return transport.NewStream(ours), nil
	}

	first, err := client.Connect(ctx, dial, nil)
	if err != nil {
		log.Fatal(err)
	}
	command := first.Command(ctx, "sh", "-c", "echo working; sleep 0.1; echo done")
	if err := command.Start(); err != nil {
		log.Fatal(err)
	}
	session, process := first.Session(), command.ID // to be saved
	if err := first.Detach(ctx); err != nil {
		log.Fatal(err)
	}

	second, err := client.Connect(ctx, dial, &client.Options{Session: session})
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()
	p, err := second.Attach(ctx, process)
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Copy(ctx, os.Stdout, os.Stderr); err != nil {
		log.Fatal(err)
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(exit)
	// Output:
	// working
	// done
	// exit status 0
}
