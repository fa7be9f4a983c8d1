//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newSandboxCommand() *cobra.Command {
	return &cobra.Command{
		Use: "sandbox", Short: "Run a command that can read and write only what it is given (Linux)",
		RunE: func(*cobra.Command, []string) error {
			return &runFailure{errors.ErrUnsupported.Error() + ": there are no sandboxes on this system", exitFailed}
		},
	}
}
