// Command exec-fleet is for many machines: a gateway that clients reach them through, what
// makes a machine join it, and what looks after them. See docs/fleet.md.
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
		Short: "Serve many machines to agents, and look after them",
		Long: "exec-fleet serves many machines to agents at one address. A gateway listens for clients, which speak\n" +
			"the exec-server protocol of Codex, and each machine connects to the gateway: nothing has to reach it.\n" +
			"exec-server works on a machine of a gateway as on every other one. docs/fleet.md describes fleets.",
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
		newChangeCommand("drain", "Make machines refuse new sessions, and end with their last one",
			"drain makes machines refuse new sessions. Sessions that there are continue, and each machine leaves the\n"+
				"fleet when its last one has ended.", http.MethodPost, "/drain",
			"drains: it takes no new sessions, and leaves with its last one"),
		newChangeCommand("forget", "Remove the entries of machines that are gone",
			"forget removes the entry of a machine at once, so that another one may take its name. An entry without\n"+
				"heartbeats goes by itself: within seconds if the machine had no sessions, otherwise within half an hour. A\n"+
				"machine that is alive makes its entry again. The token of the machine still holds; exec-fleet token\n"+
				"--revoke revokes it.", http.MethodDelete, "", "is forgotten; its token still holds"),
	)
	command.AddCommand(cli.ReleaseCommands(cli.Version(version))...)
	return command
}
