package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"execserver/internal/audit"
	"execserver/internal/errno"
)

func newAuditCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "audit COMMAND", Short: "Check audit logs", GroupID: groupServe,
		Args: cobra.MatchAll(needArgs("name what to do: verify"), subcommandOnly),
		RunE: func(*cobra.Command, []string) error { return nil }, // Args accepts nothing
	}
	verify := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Check that nobody changed or removed a line of an audit log",
		Long: "verify checks audit logs, the oldest first: every line must have the hash of the line before it,\n" +
			"also from one file to the next. verify prints the hash of the last line. A user who can write the\n" +
			"log can remove its last lines, or replace all lines from some point on. To notice this, keep a hash\n" +
			"elsewhere, and later search the log for a line with this hash as \"prev\".",
		Example: "  exec-server audit verify audit.log.1 audit.log",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("name at least one file to check"), command}
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			var chain *audit.Chain
			for _, path := range args {
				file, err := os.Open(path)
				if err != nil {
					return fmt.Errorf("open %s: %w", path, errno.Wrap(err))
				}
				next, err := audit.Verify(file, chain)
				_ = file.Close()
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				if chain == nil && next.First != audit.Beginning {
					fmt.Fprintf(command.OutOrStdout(), "%s continues after %s\n", path, next.First)
				}
				fmt.Fprintf(command.OutOrStdout(), "%s: %d lines follow each other, up to %s\n", path, next.Lines, next.Head)
				chain = next
			}
			return nil
		},
	}
	for _, c := range []*cobra.Command{command, verify} {
		c.Flags().BoolP("help", "h", false, "print this text")
	}
	command.AddCommand(verify)
	return command
}
