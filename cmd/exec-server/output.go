package main

import (
	"context"
	"fmt"
	"os"

	"execserver/client"
	"execserver/internal/cli/advice"
	"execserver/internal/cli/exit"
	"execserver/internal/cli/show"
)

// What package show has, as the commands call it.
var (
	printJSON      = show.JSON
	encodeJSON     = show.EncodeJSON
	onTerminal     = show.OnTerminal
	printableLines = show.PrintableLines
	printable      = show.Printable
	printTable     = show.Table
	printColumns   = show.Columns
	wrap           = show.Wrap
	shortDuration  = show.ShortDuration
	remaining      = show.Remaining
	spell          = show.Spell
	oneLine        = show.OneLine
	printHelp      = show.Help
	printLink      = show.PageLink
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
		if ctx.Err() != nil || env.Err() != nil || isBrokenPipe(err) {
			return err
		}
		fmt.Fprintf(os.Stderr, "Error: %s\n", advice.Line(err))
		failed = exit.Code(1)
	}
	return failed
}
