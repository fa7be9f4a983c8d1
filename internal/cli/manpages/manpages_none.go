//go:build !manpages

// Package manpages has the command that writes man pages, in the build of a release.
package manpages

import "github.com/spf13/cobra"

// Commands returns none.
func Commands(string) []*cobra.Command { return nil }
