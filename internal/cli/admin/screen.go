package admin

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
)

// screenOptions are the flags of screen.
type screenOptions struct {
	machine      cli.Machine
	colors, json bool
}

// ScreenCommand returns the command screen.
func ScreenCommand() *cobra.Command {
	var o screenOptions
	command := &cobra.Command{
		Use:        "screen [flags] TARGET",
		Short:      "Print what the terminal of a process shows",
		GroupID:    cli.GroupLook,
		SuggestFor: []string{"capture", "show", "screenshot"},
		Long: "screen prints as text what the terminal of a process shows now, for example an editor or top. The\n" +
			"process and the program that started it do not notice. attach --read-only shows the screen live.\n\n" +
			"TARGET is a PROCESS, SESSION/PROCESS, or a SESSION with one running process. exec-server ps lists\n" +
			"them. The first four characters of an id can be enough.",
		Example: "  exec-server screen --on box build\n" +
			"  exec-server screen --on box --json build | jq .cursor",
		ValidArgsFunction: o.machine.CompleteTarget,
		Args:              cli.OneTarget,
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.machine.Check(command); err != nil {
				return err
			}
			return o.machine.Query("screen", func(ctx context.Context, env *client.Environment) error {
				return o.run(ctx, env, args[0], command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.BoolVar(&o.colors, "color", false, "print colors and attributes")
	f.BoolVar(&o.json, "json", false, "print JSON, with the size, the cursor and the title")
	o.machine.AddFlags(f)
	return command
}

// run prints the screen of a target. env only finds it; a second connection observes its session.
func (o *screenOptions) run(ctx context.Context, env *client.Environment, target string, out io.Writer) error {
	session, id, err := cli.ResolveProcess(ctx, env, target)
	if err != nil {
		return err
	}
	observer, err := o.machine.Open(ctx, &client.Options{Name: "exec-server-screen", Observe: session.ID})
	if err != nil {
		return err
	}
	defer cli.Leave(observer)
	process, err := observer.Attach(ctx, id)
	if err != nil {
		return err
	}
	shown, err := process.Screen(ctx, &client.ScreenOptions{Styles: o.colors})
	if err != nil {
		if onPipes(ctx, observer, id) {
			return fmt.Errorf("process %s has no terminal, which run -t gives it; exec-server logs prints its output", cli.Printable(target))
		}
		return fmt.Errorf("cannot show the screen of %s: %w", cli.Printable(target), err)
	}
	return o.print(shown, out)
}

// screenJSON is a screen in the output of screen --json. The names are those of the
// protocol.
type screenJSON struct {
	Size struct {
		Rows int `json:"rows"`
		Cols int `json:"cols"`
	} `json:"size"`
	Rows       []string `json:"rows"`
	StyledRows []string `json:"styledRows,omitempty"`
	Cursor     struct {
		Row     int  `json:"row"`
		Col     int  `json:"col"`
		Visible bool `json:"visible"`
	} `json:"cursor"`
	Title        string `json:"title"`
	Alternate    bool   `json:"alternate"`
	NextSeq      uint64 `json:"nextSeq"`
	OmittedBytes uint64 `json:"omittedBytes"`
}

// print prints a screen without its trailing empty rows.
func (o *screenOptions) print(shown *client.Screen, out io.Writer) error {
	if o.json {
		j := screenJSON{
			Rows: shown.Text, StyledRows: shown.Styled, Title: shown.Title, Alternate: shown.Alternate,
			NextSeq: shown.NextSeq, OmittedBytes: shown.OmittedBytes,
		}
		j.Size.Rows, j.Size.Cols = shown.Rows, shown.Cols
		j.Cursor.Row, j.Cursor.Col, j.Cursor.Visible = shown.CursorRow, shown.CursorCol, shown.CursorVisible
		return cli.JSON(out, j)
	}
	if shown.OmittedBytes > 0 {
		fmt.Fprintf(os.Stderr, "Warning: the screen may be wrong: the server evicted %d bytes of output\n",
			shown.OmittedBytes)
	}
	rows := slices.Clone(shown.Text)
	if o.colors {
		rows = slices.Clone(shown.Styled)
	}
	for len(rows) > 0 && rows[len(rows)-1] == "" {
		rows = rows[:len(rows)-1]
	}
	var text strings.Builder
	for _, row := range rows {
		text.WriteString(safeRow(row) + "\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// styleSequence matches the only sequences that a row may contain.
var styleSequence = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// safeRow returns a row of a screen in which only styles can affect the terminal. The columns do
// not move.
func safeRow(row string) string {
	var safe strings.Builder
	last := 0
	for _, found := range append(styleSequence.FindAllStringIndex(row, -1), []int{len(row), len(row)}) {
		safe.WriteString(strings.Map(safeRune, row[last:found[0]]))
		safe.WriteString(row[found[0]:found[1]])
		last = found[1]
	}
	return safe.String()
}

// safeRune replaces control characters and removes invisible ones. It keeps private fonts, which
// prompts use.
func safeRune(r rune) rune {
	switch {
	case unicode.IsPrint(r), unicode.Is(unicode.Co, r):
		return r
	case unicode.Is(unicode.Cf, r):
		return -1
	}
	return unicode.ReplacementChar
}

// onPipes reports whether a process of the observed session has no terminal.
func onPipes(ctx context.Context, observer *client.Environment, id string) bool {
	list, err := observer.Processes(ctx)
	return err == nil && slices.ContainsFunc(list, func(p client.ProcessInfo) bool { return p.ID == id && !p.TTY })
}
