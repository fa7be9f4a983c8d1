package protocol

import "encoding/json"

// ExitRecord says how a process ended (PROTOCOL.md, "Exit record"). Several messages have
// the same members. An unknown member is absent, never invented.
type ExitRecord struct {
	ExitCode   int     `json:"exitCode"`         // its own, 128+n for signal n, -1 if the system did not report it
	Signal     string  `json:"signal,omitempty"` // the signal that killed it, such as SIGKILL
	CoreDumped bool    `json:"coreDumped,omitempty"`
	EndedBy    EndedBy `json:"endedBy,omitempty"`
	OOMKilled  bool    `json:"oomKilled,omitempty"` // the kernel killed the process or a descendant for lack of memory
	Rusage     *Rusage `json:"rusage,omitempty"`

	// SandboxDenied says that a sandbox seems to have denied it something. process/exited
	// and process/read have it beside the record.
	SandboxDenied bool `json:"sandboxDenied,omitempty"`
}

// EndedBy says who ended a process.
type EndedBy string

// The values of EndedBy.
const (
	EndedBySelf           EndedBy = "self"
	EndedByClient         EndedBy = "client"
	EndedByTimeout        EndedBy = "timeout"
	EndedByOutputLimit    EndedBy = "outputLimit"
	EndedBySessionExpired EndedBy = "sessionExpired"
	EndedByServerShutdown EndedBy = "serverShutdown"
)

// Rusage is the resources that a process and its reaped descendants have used.
// MaxRSSBytes is 0 if unknown.
type Rusage struct {
	UserMs      int64 `json:"userMs"`
	SystemMs    int64 `json:"systemMs"`
	MaxRSSBytes int64 `json:"maxRssBytes,omitempty"`
}

// exitMembers are the members of an exit record in another object. Without a record, the
// exit code is null and the others are absent.
type exitMembers struct {
	ExitCode *int `json:"exitCode"`
	*ExitRecord
}

func exitMembersOf(r *ExitRecord) exitMembers {
	if r == nil {
		return exitMembers{}
	}
	record := *r
	record.SandboxDenied = false
	return exitMembers{&record.ExitCode, &record}
}

// record returns the exit record, or nil if the process has not exited.
func (m exitMembers) record() *ExitRecord {
	if m.ExitCode == nil {
		return nil
	}
	r := new(ExitRecord)
	if m.ExitRecord != nil {
		r = m.ExitRecord
	}
	r.ExitCode = *m.ExitCode
	return r
}

// appendExit appends the members of an exit record, each after a comma.
func appendExit(b []byte, r *ExitRecord) []byte {
	text, err := json.Marshal(exitMembersOf(r))
	if err != nil {
		panic("protocol: strings and numbers always encode: " + err.Error())
	}
	b = append(b, ',')
	return append(b, text[1:len(text)-1]...)
}
