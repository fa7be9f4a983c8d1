package client

import (
	"context"
	"encoding/json"

	"execserver/protocol"
)

// Screen is what a person would see on the terminal of a process (PROTOCOL.md,
// "process/screen").
type Screen struct {
	Rows, Cols int      // the size of the terminal
	Text       []string // the text of each row, without blanks at its end
	Styled     []string // the same with SGR sequences; nil unless ScreenOptions.Styles asked for it

	CursorRow, CursorCol int // counted from 0
	CursorVisible        bool

	Title     string // what the program calls its window
	Alternate bool   // the program uses the alternate screen

	// OmittedBytes is how many bytes of output the screen lacks, because the server had
	// evicted them. Unless it is 0, parts of the screen may be wrong until the program
	// draws them again.
	OmittedBytes uint64

	// Drawing brings a terminal of the same size to the state of the screen. It is nil
	// unless ScreenOptions.Drawing asked for it. Like all that a program writes, it may
	// do anything to a terminal.
	Drawing []byte

	NextSeq uint64 // EventsAfter(ctx, NextSeq-1) continues after the screen
	Closed  bool
	Exit    *Exit // nil while the process runs
}

// ScreenOptions are the options of Process.Screen.
type ScreenOptions struct {
	Styles  bool // ask for Screen.Styled
	Drawing bool // ask for Screen.Drawing
}

// Screen returns what a person would see on the terminal of the process now. It consumes
// nothing. Nil options ask for the text alone. For a process without a terminal the error
// is a *protocol.Error with the code InvalidRequest. The server needs the capability
// processScreen.
func (p *Process) Screen(ctx context.Context, opts *ScreenOptions) (*Screen, error) {
	if p == nil {
		return nil, errNotStarted
	}
	if !p.env.has(capScreen) {
		return nil, &UnsupportedError{"show the screen of a process", capScreen}
	}
	params := protocol.ScreenParams{ProcessID: p.ID}
	if opts != nil {
		params.Styles, params.Drawing = opts.Styles, opts.Drawing
	}
	raw, err := p.env.link.repeat(ctx, protocol.MethodScreen, params)
	if err != nil {
		return nil, err
	}
	var r protocol.ScreenResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	return &Screen{
		Rows: int(r.Size.Rows), Cols: int(r.Size.Cols), Text: r.Rows, Styled: r.StyledRows,
		CursorRow: r.Cursor.Row, CursorCol: r.Cursor.Col, CursorVisible: r.Cursor.Visible,
		Title: r.Title, Alternate: r.Alternate, OmittedBytes: r.OmittedBytes, Drawing: r.Drawing,
		NextSeq: r.NextSeq, Closed: r.Closed, Exit: exitOf(r.Exit),
	}, nil
}
