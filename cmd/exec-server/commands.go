package main

import (
	"errors"
	"fmt"
	"strings"

	"execserver/internal/cli/codexconf"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/internal/cli"
	"execserver/internal/cli/serve"
)

// newCommand returns the whole command line. Without a subcommand it serves, as launchers
// of the released server expect.
func newCommand() *cobra.Command {
	cobra.EnableCommandSorting = false // the help text has the most important ones first
	o := serve.Flags{Version: buildVersion()}
	var version bool
	command := &cobra.Command{
		Use:   "exec-server",
		Short: "Run commands, terminals and file operations on this machine for an agent",
		Long: "exec-server runs commands, terminals and file operations on this machine for an agent, which\n" +
			"speaks the exec-server protocol of Codex. It is also the tool to work on such a machine by hand.\n" +
			"Without a command it serves, with the flags of \"exec-server serve\".",
		Example: "  exec-server serve --listen ws://localhost:8765\n" +
			"  exec-server run --url ws://localhost:8765 -- make test",
		Args:          cli.SubcommandOnly,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if version { // not cobra's own, whose template costs the program 2 MB
				return printVersion(command)
			}
			return o.Run(command)
		},
	}
	command.SetFlagErrorFunc(cli.FlagError)
	command.SetHelpFunc(cli.Help)
	f := command.Flags()
	o.Define(f, true)
	f.VisitAll(func(f *pflag.Flag) { f.Hidden = true }) // in the help text of serve
	f.BoolP("help", "h", false, "print this text")
	f.BoolVarP(&version, "version", "v", false, "print the version")
	command.AddGroup(
		&cobra.Group{ID: cli.GroupServe, Title: "Serve this machine:"},
		&cobra.Group{ID: cli.GroupWork, Title: "Work on a machine:"},
		&cobra.Group{ID: cli.GroupLook, Title: "Look after what runs there:"},
		&cobra.Group{ID: cli.GroupSetUp, Title: "Set up:"},
	)
	serving := serve.Command(buildVersion())
	serving.GroupID = cli.GroupServe
	command.AddCommand(
		serving, newDrainCommand(), newConfigCommand(), newSandboxCommand(),
		newRunCommand(), newAttachCommand(), newListCommand(), newCatCommand(), newCopyCommand(),
		newWatchCommand(), newForwardCommand(), newConnectCommand(),
		newProcessesCommand(), newLogsCommand(), newScreenCommand(), newKillCommand(), newSessionsCommand(),
	)
	command.AddCommand(recordingCommands()...)
	command.AddCommand(newWebCommand())
	command.AddCommand(
		newInfoCommand(), newDoctorCommand(), codexconf.Command(), newCompletionCommand(), newVersionCommand(),
	)
	command.AddCommand(cli.ReleaseCommands(buildVersion())...)
	command.SetHelpCommand(newHelpCommand())
	command.InitDefaultHelpCmd()
	for _, sub := range command.Commands() {
		if sub.Flags().Lookup("on") != nil {
			// It fails only for a flag that does not exist or is completed already.
			_ = sub.RegisterFlagCompletionFunc("on", cli.CompleteNames)
		}
	}
	return command
}

// newHelpCommand returns the subcommand help. Cobra's own succeeds for a word that is no
// command.
func newHelpCommand() *cobra.Command {
	command := &cobra.Command{
		Use:               "help [COMMAND]",
		Short:             "Print the help text of a command",
		GroupID:           cli.GroupSetUp,
		Long:              "help prints the help text of a command, as --help does.",
		ValidArgsFunction: completeCommands,
		RunE: func(command *cobra.Command, args []string) error {
			topic := command.Root()
			for _, word := range args {
				sub := subcommand(topic, word)
				switch {
				case sub != nil:
					topic = sub
				case topic.HasAvailableSubCommands():
					return cli.UnknownCommand(topic, word)
				default:
					return cli.NoArgs(command, []string{word})
				}
			}
			return topic.Help()
		},
	}
	command.Flags().BoolP("help", "h", false, "print this text")
	return command
}

// subcommand returns the subcommand of this name, or nil.
func subcommand(command *cobra.Command, name string) *cobra.Command {
	for _, sub := range command.Commands() {
		if sub.Name() == name && (sub.IsAvailableCommand() || name == "help") {
			return sub
		}
	}
	return nil
}

// completeCommands completes the names of subcommands.
func completeCommands(command *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []string
	topic := command.Root()
	for _, word := range args {
		if topic = subcommand(topic, word); topic == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, sub := range topic.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		GroupID: cli.GroupSetUp,
		Long:    "version prints the version of this program. \"exec-server info\" prints that of a server.",
		Args:    cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if asJSON {
				return cli.JSON(command.OutOrStdout(), map[string]string{"version": buildVersion()})
			}
			return printVersion(command)
		},
	}
	command.Flags().SortFlags = false
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	command.Flags().BoolP("help", "h", false, "print this text")
	return command
}

func printVersion(command *cobra.Command) error {
	_, err := fmt.Fprintln(command.OutOrStdout(), "exec-server", buildVersion())
	return err
}

func newCompletionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	command := &cobra.Command{
		Use:     "completion SHELL",
		Short:   "Print a script with which a shell completes command lines",
		GroupID: cli.GroupSetUp,
		Long: "completion prints a script for bash, zsh, fish or powershell. With it, the shell completes the\n" +
			"commands and flags of exec-server, the names of environments, files of the machine, and what runs\n" +
			"at its server. In bash it needs the package bash-completion.",
		Example: "  source <(exec-server completion bash)                                  # in this shell\n" +
			"  exec-server completion bash >/etc/bash_completion.d/exec-server\n" +
			"  exec-server completion zsh >\"${fpath[1]}/_exec-server\"\n" +
			"  exec-server completion fish >~/.config/fish/completions/exec-server.fish",
		ValidArgs: shells,
		Args: func(command *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return cli.NewUsageError(errors.New("name the shell: "+strings.Join(shells, ", ")), command)
			case len(args) > 1:
				return cli.NoArgs(command, args[1:])
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			out := command.OutOrStdout()
			switch args[0] {
			case "bash":
				return command.Root().GenBashCompletionV2(out, true)
			case "zsh":
				return command.Root().GenZshCompletion(out)
			case "fish":
				return command.Root().GenFishCompletion(out, true)
			case "powershell":
				return command.Root().GenPowerShellCompletionWithDesc(out)
			}
			return cli.NewUsageError(fmt.Errorf("there is no completion for %q; expected %s", args[0], strings.Join(shells, ", ")), command)
		},
	}
	command.Flags().BoolP("help", "h", false, "print this text")
	return command
}
