// Command shell is a shell on the machine of an environment, on this terminal:
//
//	go run ./examples/shell            # here, without a server
//	go run ./examples/shell box
//
// It shows the terminal's part of the client. "exec-server run -t" does the same
// and more.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/term"

	"execserver/client"
	"execserver/client/environments"
)

func main() {
	name := "local"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	err := shell(context.Background(), name)
	var exit *client.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func shell(ctx context.Context, name string) error {
	env, err := environments.Open(ctx, name, nil)
	if err != nil {
		return err
	}
	defer env.Close()
	path := env.Info().ShellPath
	if path == "" {
		path = "/bin/sh"
	}
	command := env.Command(ctx, path)
	command.Stdin, command.Stdout = os.Stdin, os.Stdout
	command.TTY = &client.Size{}
	command.EnvPolicy = client.InheritAll()
	command.Env = []string{"TERM=" + os.Getenv("TERM")}
	// From now on this terminal passes keys on unchanged: the other terminal interprets
	// them.
	if fd := int(os.Stdin.Fd()); term.IsTerminal(fd) {
		command.TTY = size(fd)
		state, err := term.MakeRaw(fd)
		if err != nil {
			return err
		}
		defer func() { _ = term.Restore(fd, state) }()
	}
	if err := command.Start(); err != nil {
		return err
	}
	defer followSize(ctx, command)()
	return command.Wait()
}

func size(fd int) *client.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return &client.Size{} // the default size
	}
	return &client.Size{Rows: uint16(rows), Cols: uint16(cols)}
}
