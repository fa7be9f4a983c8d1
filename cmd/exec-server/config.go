package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"execserver/internal/cli"
	"execserver/internal/cli/serve"
)

func newConfigCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "config COMMAND", Short: "Check a configuration file", GroupID: cli.GroupServe,
		Args: cobra.MatchAll(cli.NeedArgs("name what to do: check"), cli.SubcommandOnly),
		RunE: func(*cobra.Command, []string) error { return nil }, // Args accepts nothing
	}
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Find out whether a server would start with a configuration file",
		Long: "check reads a file for \"exec-server serve --config FILE\", and the files that it names, as the server\n" +
			"would. It prints ok, or one line with the place of each fault, and then exits with 1. It listens\n" +
			"nowhere. Run it as the server's user. docs/configuration.md lists the settings.",
		Example: "  exec-server config check /etc/exec-server/config.toml && systemctl restart exec-server",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.NewUsageError(errors.New("name the file to check"), command)
			}
			return cli.NoArgs(command, args[1:])
		},
		RunE: func(command *cobra.Command, args []string) error {
			faults := serve.CheckConfig(args[0])
			for _, fault := range faults {
				fmt.Fprintln(command.ErrOrStderr(), cli.OneLine(fault.Error()))
			}
			if len(faults) > 0 {
				return cli.ExitCode(1)
			}
			_, err := fmt.Fprintln(command.OutOrStdout(), "ok")
			return err
		},
	}
	for _, c := range []*cobra.Command{command, check} {
		c.Flags().BoolP("help", "h", false, "print this text")
	}
	command.AddCommand(check)
	return command
}
