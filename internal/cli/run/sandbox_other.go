//go:build !linux

package run

import (
	"errors"

	"github.com/spf13/cobra"

	"execserver/internal/cli"
)

// SandboxCommand returns the command sandbox.
func SandboxCommand() *cobra.Command {
	return &cobra.Command{
		Use: "sandbox", Short: "Run a command that can read and write only what it is given (Linux)",
		RunE: func(*cobra.Command, []string) error {
			return &cli.Failure{Text: errors.ErrUnsupported.Error() + ": there are no sandboxes on this system", Code: cli.ExitFailed}
		},
	}
}
