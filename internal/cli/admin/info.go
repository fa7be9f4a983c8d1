package admin

import (
	"context"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
)

// InfoCommand returns the command info. version is that of this program.
func InfoCommand(version string) *cobra.Command {
	var m cli.Machine
	var json bool
	command := &cobra.Command{
		Use:        "info [flags]",
		Short:      "Describe a server and its machine",
		GroupID:    cli.GroupSetUp,
		SuggestFor: []string{"status", "about"},
		Long: "info prints the version, the system, the shell, the directories and the capabilities of a server.\n" +
			"PROTOCOL.md describes them under \"Environment\".",
		Example: "  exec-server info --on box\n" +
			"  exec-server info --on box --json",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := m.Check(command); err != nil {
				return err
			}
			return m.Do("info", func(_ context.Context, env *client.Environment) error {
				info := *env.Info()
				if m.On == cli.ThisMachine {
					info.Version = version
				}
				if json {
					return cli.JSON(command.OutOrStdout(), infoJSON(&info))
				}
				return printInfo(command.OutOrStdout(), &info)
			})
		},
	}
	f := command.Flags()
	f.BoolVar(&json, "json", false, "print one JSON document")
	m.AddFlags(f)
	return command
}

// machineJSON is the output of info --json. The names are those of environmentInfo, with
// paths of the machine instead of URIs.
type machineJSON struct {
	Machine         string          `json:"machine,omitempty"`
	ExecutorVersion string          `json:"executorVersion,omitempty"`
	PlatformOS      string          `json:"platformOs,omitempty"`
	Shell           *shellJSON      `json:"shell,omitempty"`
	Cwd             string          `json:"cwd,omitempty"`
	UserHomeDir     string          `json:"userHomeDir,omitempty"`
	TempDir         string          `json:"tempDir,omitempty"`
	SessionLifetime *lifetimeJSON   `json:"sessionLifetime,omitempty"`
	Capabilities    map[string]bool `json:"capabilities"`
}

type lifetimeJSON struct {
	DetachedMs int64 `json:"detachedMs"`
	SilentMs   int64 `json:"silentMs"`
	MaxKeepMs  int64 `json:"maxKeepMs"`
}

type shellJSON struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

func infoJSON(info *client.Info) machineJSON {
	j := machineJSON{
		Machine: info.Machine, ExecutorVersion: info.Version, PlatformOS: info.OS, Cwd: info.Dir, UserHomeDir: info.HomeDir, TempDir: info.TempDir,
		Capabilities: info.Capabilities,
	}
	if l := info.SessionLifetime; l != nil {
		j.SessionLifetime = &lifetimeJSON{l.Detached.Milliseconds(), l.Silent.Milliseconds(), l.MaxKeep.Milliseconds()}
	}
	if info.Shell != "" {
		j.Shell = &shellJSON{info.Shell, info.ShellPath}
	}
	return j
}

// lifetime describes how long the server keeps a session without a connection.
func lifetime(l *client.SessionLifetime) string {
	if l == nil {
		return ""
	}
	text := "kept for " + cli.Spell(l.Detached) + " without a connection, " + cli.Spell(l.Silent) + " after a silence"
	if l.MaxKeep > 0 {
		text += ", up to " + cli.Spell(l.MaxKeep) + " if asked to"
	}
	return text
}

// printInfo prints the known properties. Released servers do not send all of them.
func printInfo(out io.Writer, info *client.Info) error {
	shell := info.Shell
	if info.ShellPath != "" {
		shell += " (" + info.ShellPath + ")"
	}
	var can []string
	for _, name := range slices.Sorted(maps.Keys(info.Capabilities)) {
		if info.Capabilities[name] {
			can = append(can, cli.Printable(name))
		}
	}
	var rows [][]string
	for _, row := range [][]string{
		{"machine", info.Machine},
		{"version", info.Version},
		{"system", info.OS},
		{"shell", shell},
		{"directory", info.Dir},
		{"home", info.HomeDir},
		{"temporary", info.TempDir},
		{"sessions", lifetime(info.SessionLifetime)},
	} {
		if row[1] != "" {
			rows = append(rows, []string{row[0], cli.Printable(row[1])})
		}
	}
	title := "can"
	for _, line := range cli.Wrap(can, 68) {
		rows = append(rows, []string{title, line})
		title = ""
	}
	return cli.Table(out, rows)
}
