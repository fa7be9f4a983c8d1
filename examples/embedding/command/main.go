// Program command runs a command on another machine:
//
//	command URL PROGRAM [ARG...]
//
// It reads a bearer token from the variable TOKEN.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"execserver/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: command URL PROGRAM [ARG...]")
	}
	env, err := client.Dial(ctx, args[0], &client.Options{Token: os.Getenv("TOKEN")})
	if err != nil {
		return err
	}
	defer env.Close()
	command := env.Command(ctx, args[1], args[2:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return command.Run()
}
