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
	command := &cobra.Command{Use: "audit", Short: "Check audit logs"}
	verify := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Check that nothing in audit logs was changed or left out",
		Long: "verify checks files that --audit-log has written, in their order: each line has the hash of the line\n" +
			"before, also from one file to the next. It prints the hash of the last line. Whoever can write the file\n" +
			"can cut lines off its end, or write all lines from one on anew: keep a hash elsewhere, and later look\n" +
			"for a line that has it as its \"prev\".",
		Example: "  exec-server audit verify audit.log.1 audit.log",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("there is no file to check"), command}
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
					fmt.Fprintf(command.OutOrStdout(), "%s goes on after %s\n", path, next.First)
				}
				fmt.Fprintf(command.OutOrStdout(), "%s: %d lines follow each other, up to %s\n", path, next.Lines, next.Head)
				chain = next
			}
			return nil
		},
	}
	command.AddCommand(verify)
	return command
}
