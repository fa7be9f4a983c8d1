package main

import (
	"context"
	"fmt"
	"os"

	"execserver/client"
	"execserver/internal/cli"
)

// each calls work for each argument of a subcommand. A failure does not keep it from the
// next one: it is printed, and the program then ends with 1.
func each(ctx context.Context, env *client.Environment, args []string, work func(arg string) error) error {
	var failed error
	for _, arg := range args {
		err := work(arg)
		if err == nil {
			continue
		}
		if ctx.Err() != nil || env.Err() != nil || cli.IsBrokenPipe(err) {
			return err
		}
		fmt.Fprintf(os.Stderr, "Error: %s\n", cli.ErrorLine(err))
		failed = cli.ExitCode(1)
	}
	return failed
}
