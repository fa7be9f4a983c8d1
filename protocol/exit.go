package protocol

import "strconv"

// ExitRecord says how a process ended (PROTOCOL.md, "Exit record"). The same
// members tell it wherever the wire does. What is not known is absent, never
// invented.
type ExitRecord struct {
	ExitCode   int     `json:"exitCode"`         // its own, 128+n for signal n, -1 when the system did not tell
	Signal     string  `json:"signal,omitempty"` // that killed it, such as SIGKILL
	CoreDumped bool    `json:"coreDumped,omitempty"`
	EndedBy    EndedBy `json:"endedBy,omitempty"`
	OOMKilled  bool    `json:"oomKilled,omitempty"` // the kernel killed something of it for lack of memory
	Rusage     *Rusage `json:"rusage,omitempty"`

	// SandboxDenied says that a sandbox seems to have kept it from something. It
	// is not part of the record on the wire, but stands beside it.
	SandboxDenied bool `json:"-"`
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

// Rusage is what a process has used, with those of its descendants that were
// waited for. MaxRSSBytes is 0 where the system does not tell.
type Rusage struct {
	UserMs      int64 `json:"userMs"`
	SystemMs    int64 `json:"systemMs"`
	MaxRSSBytes int64 `json:"maxRssBytes,omitempty"`
}

// appendExit appends the members of an exit record, each after a comma; nil is a
// process that has not exited.
func appendExit(b []byte, r *ExitRecord) []byte {
	if r == nil {
		return append(b, `,"exitCode":null`...)
	}
	b = append(b, `,"exitCode":`...)
	b = strconv.AppendInt(b, int64(r.ExitCode), 10)
	if r.Signal != "" {
		b = append(b, `,"signal":"`...)
		b = append(b, r.Signal...)
		b = append(b, '"')
	}
	if r.CoreDumped {
		b = append(b, `,"coreDumped":true`...)
	}
	if r.EndedBy != "" {
		b = append(b, `,"endedBy":"`...)
		b = append(b, r.EndedBy...)
		b = append(b, '"')
	}
	if r.OOMKilled {
		b = append(b, `,"oomKilled":true`...)
	}
	if r.Rusage == nil {
		return b
	}
	b = append(b, `,"rusage":{"userMs":`...)
	b = strconv.AppendInt(b, r.Rusage.UserMs, 10)
	b = append(b, `,"systemMs":`...)
	b = strconv.AppendInt(b, r.Rusage.SystemMs, 10)
	if r.Rusage.MaxRSSBytes > 0 {
		b = append(b, `,"maxRssBytes":`...)
		b = strconv.AppendInt(b, r.Rusage.MaxRSSBytes, 10)
	}
	return append(b, '}')
}
