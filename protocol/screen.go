package protocol

import "encoding/json"

// MethodScreen asks for the screen of a process on a terminal (PROTOCOL.md,
// "process/screen").
const MethodScreen = "process/screen"

// ScreenParams are the params of process/screen.
type ScreenParams struct {
	ProcessID string `json:"processId" wire:"identifier"`
	Styles    bool   `json:"styles,omitempty" wire:"absent=false"`  // asks for StyledRows
	Drawing   bool   `json:"drawing,omitempty" wire:"absent=false"` // asks for Drawing

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // nil means that of the connection
}

// ScreenResult is the answer to process/screen.
type ScreenResult struct {
	Exit         *ExitRecord  `json:"-"` // nil while the process runs
	Closed       bool         `json:"closed"`
	NextSeq      uint64       `json:"nextSeq"` // of the first event that the screen does not show
	Size         TerminalSize `json:"size"`
	Rows         []string     `json:"rows"`                 // without blanks at their ends
	StyledRows   []string     `json:"styledRows,omitempty"` // with SGR sequences
	Cursor       ScreenCursor `json:"cursor"`
	Title        string       `json:"title"`
	Alternate    bool         `json:"alternate"`         // the alternate screen is shown
	OmittedBytes uint64       `json:"omittedBytes"`      // of output that the server no longer had
	Drawing      []byte       `json:"drawing,omitempty"` // brings a terminal to the same state
}

// ScreenCursor is where the cursor is, counted from 0.
type ScreenCursor struct {
	Row     int  `json:"row"`
	Col     int  `json:"col"`
	Visible bool `json:"visible"`
}

type plainScreen ScreenResult

type wireScreen struct {
	Running bool `json:"running"`
	*plainScreen
	exitMembers
}

// MarshalJSON implements json.Marshaler.
func (r *ScreenResult) MarshalJSON() ([]byte, error) {
	r.Rows = orEmpty(r.Rows)
	return json.Marshal(wireScreen{r.Exit == nil, (*plainScreen)(r), exitMembersOf(r.Exit)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *ScreenResult) UnmarshalJSON(text []byte) error {
	wire := wireScreen{plainScreen: (*plainScreen)(r)}
	err := json.Unmarshal(text, &wire)
	r.Exit = wire.record()
	return err
}
