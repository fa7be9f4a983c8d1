package protocol

// MethodUsage asks what processes use (PROTOCOL.md, "process/usage").
const MethodUsage = "process/usage"

// UsageParams are the params of process/usage.
type UsageParams struct {
	All bool `json:"all,omitempty" wire:"absent=false"` // of all sessions that session/list lists
}

// UsageResult is the answer to process/usage.
type UsageResult struct {
	Processes []UsedProcess `json:"processes"`
	Truncated bool          `json:"truncated,omitempty"` // sessions are left out, because there were too many processes
}

// UsedProcessValues is the number of JSON values of a UsedProcess.
const UsedProcessValues = 6

// UsedProcess is what a process and everything that it has started use.
type UsedProcess struct {
	SessionID   string `json:"sessionId,omitempty"` // in a list of all sessions
	ProcessID   string `json:"processId"`
	Processes   int    `json:"processes"` // of the system, that run now
	CPUMs       int64  `json:"cpuMs"`     // processor time used so far
	MemoryBytes int64  `json:"memoryBytes"`
}
