// Package root builds the command line of exec-server from the commands of the packages next to
// it.
package root

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/internal/cli"
	"execserver/internal/cli/admin"
	"execserver/internal/cli/codexconf"
	"execserver/internal/cli/connect"
	"execserver/internal/cli/connect/relay"
	"execserver/internal/cli/doctor"
	"execserver/internal/cli/files"
	"execserver/internal/cli/run"
	"execserver/internal/cli/serve"
)

// Run executes a command line and returns the exit code: 0, 1 for a failure, 2 for an invalid
// command line, 128 plus the number of a signal, or for the command run the code of its program.
// version is that of this program.
func Run(version string, args []string) int {
	command := New(version)
	if len(args) > 0 && args[0] == "kill" {
		args = admin.ExpandSignals(args)
	}
	cli.DescribePlainly(command, args)
	command.SetArgs(args)
	return cli.Report(command.Execute())
}

// New returns the whole command line. Without a subcommand it serves, as launchers of the
// released server expect.
func New(version string) *cobra.Command {
	cobra.EnableCommandSorting = false // the help text has the most important ones first
	o := serve.Flags{Version: version}
	var showVersion bool
	command := &cobra.Command{
		Use:   "exec-server",
		Short: "Let an agent work on another machine",
		Long: "exec-server is a server that runs commands and edits files for Codex, and a client to do the same by\n" +
			"hand. Without a command it starts a server, with the flags of \"exec-server serve\".",
		Example: "  exec-server codex-config add box --ssh box    # let Codex work on the box\n" +
			"  exec-server run --on box -- make test\n" +
			"  exec-server serve --listen ws://localhost:8765",
		Args:          cli.SubcommandOnly,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if showVersion { // not cobra's own, whose template costs the program 2 MB
				return printVersion(command, version)
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
	f.BoolVarP(&showVersion, "version", "v", false, "print the version")
	command.AddGroup(
		&cobra.Group{ID: cli.GroupServe, Title: "Serve this machine:"},
		&cobra.Group{ID: cli.GroupWork, Title: "Work on a machine:"},
		&cobra.Group{ID: cli.GroupLook, Title: "Look after what runs there:"},
		&cobra.Group{ID: cli.GroupSetUp, Title: "Set up:"},
	)
	serving := serve.Command(version)
	serving.GroupID = cli.GroupServe
	command.AddCommand(
		serving, admin.DrainCommand(func() *cobra.Command { return New(version) }), serve.ConfigCommand(), run.SandboxCommand(),
		run.Command(), run.AttachCommand(), files.LsCommand(), files.CatCommand(), files.CpCommand(),
		files.WatchCommand(), connect.ForwardCommand(), connect.Command(version), relay.Command(version),
		admin.PsCommand(), admin.LogsCommand(), admin.ScreenCommand(), admin.KillCommand(), admin.SessionsCommand(),
	)
	command.AddCommand(
		admin.CastCommand(), admin.WebCommand(), admin.InfoCommand(version), doctor.Command(version), codexconf.Command(), completionCommand(), versionCommand(version),
	)
	command.AddCommand(cli.ReleaseCommands(version)...)
	command.SetHelpCommand(helpCommand())
	command.InitDefaultHelpCmd()
	cli.AddHelpFlags(command)
	completeMachines(command)
	return command
}

// completeMachines makes --on of all subcommands complete the names of machines.
func completeMachines(command *cobra.Command) {
	for _, sub := range command.Commands() {
		if sub.Flags().Lookup("on") != nil {
			// It fails only for a flag that does not exist or is completed already.
			_ = sub.RegisterFlagCompletionFunc("on", cli.CompleteMachines)
		}
		completeMachines(sub)
	}
}

// helpCommand returns the command help. Cobra's own succeeds for a word that is not a command.
func helpCommand() *cobra.Command {
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

func versionCommand(version string) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		GroupID: cli.GroupSetUp,
		Long:    "version prints the version of this program. \"exec-server info\" prints the version of a server.",
		Args:    cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if asJSON {
				return cli.JSON(command.OutOrStdout(), map[string]string{"version": version})
			}
			return printVersion(command, version)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func printVersion(command *cobra.Command, version string) error {
	_, err := fmt.Fprintln(command.OutOrStdout(), "exec-server", version)
	return err
}

func completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	command := &cobra.Command{
		Use:     "completion SHELL",
		Short:   "Print a script that completes command lines in a shell",
		GroupID: cli.GroupSetUp,
		Long: "The script is for bash, zsh, fish or powershell. It completes commands, flags, the names of\n" +
			"environments, files of the machine, and the processes of its server. In bash it needs the package\n" +
			"bash-completion.",
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
	return command
}
