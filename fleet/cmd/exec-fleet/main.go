// Command exec-fleet serves many machines: it runs a gateway through which clients reach them,
// makes a machine join a gateway, and looks after machines. See docs/fleet.md.
package main

import (
	"net/http"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"execserver/internal/cli"
	"execserver/internal/cli/serve"
)

// version is set by the release build.
var version = ""

// The first thread starts no process, and reaps orphans: see ownership.ReapOrphans.
func init() { runtime.LockOSThread() }

func main() { serve.Main(func() int { return run(os.Args[1:]) }) }

// run executes the command line and returns the exit code: 0, 1 for a failure, 2 for an
// invalid command line, 128 and its number for a signal.
func run(args []string) int {
	command := newCommand()
	cli.DescribePlainly(command, args)
	command.SetArgs(args)
	return cli.Report(command.Execute())
}

// Groups of subcommands, in the order of the help text.
const (
	groupServe = "serve"
	groupLook  = "look"
)

// newCommand returns the whole command line.
func newCommand() *cobra.Command {
	cobra.EnableCommandSorting = false // the help text has the most important ones first
	command := &cobra.Command{
		Use:   "exec-fleet COMMAND",
		Short: "Serve many machines to agents at one address, and look after them",
		Long: "A gateway listens for clients, which speak the exec-server protocol of Codex. Each machine connects\n" +
			"to the gateway, so nothing has to reach the machine. exec-server works on a machine of a gateway as\n" +
			"on any other. docs/fleet.md describes fleets.",
		Version:       cli.Version(version),
		Args:          cobra.MatchAll(cli.NeedArgs("name a command; exec-fleet --help lists them"), cli.SubcommandOnly),
		RunE:          func(*cobra.Command, []string) error { return nil }, // Args accepts nothing
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	command.SetVersionTemplate("exec-fleet {{.Version}}\n")
	command.SetFlagErrorFunc(cli.FlagError)
	command.SetHelpFunc(cli.Help)
	command.Flags().BoolP("help", "h", false, "print this text")
	command.Flags().BoolP("version", "v", false, "print the version")
	command.AddGroup(
		&cobra.Group{ID: groupServe, Title: "Serve machines:"},
		&cobra.Group{ID: groupLook, Title: "Look after them:"},
	)
	command.AddCommand(
		newGatewayCommand(), newJoinCommand(),
		newTokenCommand(), newListCommand(), newInfoCommand(), newRunCommand(), newWebCommand(),
		newChangeCommand("drain", "Make machines refuse new sessions, and leave after their last one",
			"drain makes machines refuse new sessions. Their present sessions continue. A machine leaves the fleet\n"+
				"after its last session.", http.MethodPost, "/drain",
			"drains: it takes no new sessions, and leaves with its last one"),
		newChangeCommand("forget", "Remove the entries of lost machines",
			"forget removes the entry of a machine at once, so that another machine can take its name. Without\n"+
				"heartbeats an entry expires by itself: within seconds if the machine had no sessions, otherwise within\n"+
				"half an hour. A live machine registers again. Its token remains valid until exec-fleet token\n"+
				"--revoke.", http.MethodDelete, "", "is forgotten; its token still holds"),
	)
	command.AddCommand(cli.ReleaseCommands(cli.Version(version))...)
	cli.AddHelpFlags(command)
	return command
}
