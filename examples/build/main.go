// Command build runs a build on the machine of an environment. It shows the output as it
// arrives, and keeps standard error apart:
//
//	go run ./examples/build            # here, without a server
//	go run ./examples/build box /srv/work make -j8
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"execserver/client"
	"execserver/client/environments"
)

func main() {
	name, dir, argv := "local", ".", []string{"go", "build", "./..."}
	if len(os.Args) > 3 {
		name, dir, argv = os.Args[1], os.Args[2], os.Args[3:]
	}
	// The first interrupt ends the build, wherever it runs.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := build(ctx, name, dir, argv)
	var exit *client.ExitError
	switch {
	case errors.As(err, &exit):
		fmt.Fprintln(os.Stderr, "the build ended with", exit)
		os.Exit(exit.ExitCode)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func build(ctx context.Context, name, dir string, argv []string) error {
	env, err := environments.Open(ctx, name, nil)
	if err != nil {
		return err
	}
	defer env.Close()
	command := env.Command(ctx, argv[0], argv[1:]...)
	command.Dir = dir
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	// The build may leave a program behind that holds its output.
	command.WaitDelay = 10 * time.Second
	return command.Run()
}
