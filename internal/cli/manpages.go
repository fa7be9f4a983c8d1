//go:build manpages

package cli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// ReleaseCommands returns the commands that only the build of a release needs. Released programs
// do not have them, because the code for man pages is large. version is that of the program.
func ReleaseCommands(version string) []*cobra.Command {
	return []*cobra.Command{{
		Use:    "man-pages DIR",
		Short:  "Write the man page of each command into a directory",
		Hidden: true,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) != 1 {
				return NewUsageError(errors.New("name the directory for the man pages"), command)
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := command.Root()
			root.DisableAutoGenTag = true
			// The date of the pages comes from SOURCE_DATE_EPOCH.
			header := &doc.GenManHeader{Section: "1", Source: root.Name() + " " + version, Manual: "User Commands"}
			return doc.GenManTree(root, header, args[0])
		},
	}}
}
