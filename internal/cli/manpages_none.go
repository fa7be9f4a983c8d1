//go:build !manpages

package cli

import "github.com/spf13/cobra"

// ReleaseCommands returns none.
func ReleaseCommands(string) []*cobra.Command { return nil }
