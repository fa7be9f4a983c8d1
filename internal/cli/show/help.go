package show

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Help prints the help text of a command. On a terminal it breaks the lines where the
// terminal ends, and not in the middle of a word, as the terminal would.
func Help(command *cobra.Command, _ []string) {
	out := command.OutOrStdout()
	about, usage := cmp.Or(command.Long, command.Short), command.UsageString()
	if width, ok := OnTerminal(out); ok {
		about = fill(about, width)
		flags := command.LocalFlags()
		usage = strings.Replace(usage, strings.TrimRight(flags.FlagUsages(), "\n"),
			strings.TrimRight(flags.FlagUsagesWrapped(width), "\n"), 1)
	}
	fmt.Fprintf(out, "%s\n\n%s", about, usage)
}

// fill breaks the lines of paragraphs anew if one is longer than width.
func fill(text string, width int) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, paragraph := range paragraphs {
		for line := range strings.SplitSeq(paragraph, "\n") {
			if len(line) > width {
				paragraphs[i] = strings.Join(Wrap(strings.Fields(paragraph), width), "\n")
				break
			}
		}
	}
	return strings.Join(paragraphs, "\n\n")
}
