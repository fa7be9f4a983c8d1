package protocol

import (
	"encoding/json"
	"reflect"
)

// A rule says what a type is in the schema if it has an encoder or a decoder of its own. It
// sets one member.
type rule struct {
	members reflect.Type   // an object with the members of this struct
	union   []reflect.Type // one of these
	schema  schema
}

// rules has every type whose encoding differs from that of encoding/json and of the tag wire.
var rules = map[reflect.Type]rule{
	reflect.TypeFor[StartParams]():    {union: []reflect.Type{reflect.TypeFor[ordinaryStart](), reflect.TypeFor[startOuter]()}},
	reflect.TypeFor[ReadResult]():     {members: reflect.TypeFor[wireRead]()},
	reflect.TypeFor[WaitResult]():     {members: reflect.TypeFor[wireWait]()},
	reflect.TypeFor[SnapshotResult](): {members: reflect.TypeFor[wireSnapshot]()},
	reflect.TypeFor[ScreenResult]():   {members: reflect.TypeFor[wireScreen]()},
	reflect.TypeFor[ListedProcess]():  {members: reflect.TypeFor[wireListed]()},
	reflect.TypeFor[ListResult]():     {members: reflect.TypeFor[wireList]()},
	reflect.TypeFor[listItem]():       {union: []reflect.Type{reflect.TypeFor[ListedProcess](), reflect.TypeFor[BackgroundProcess]()}},
	reflect.TypeFor[Exited]():         {members: reflect.TypeFor[wireExited]()},
	reflect.TypeFor[wireFilePath]():   {union: []reflect.Type{reflect.TypeFor[wireOnePath](), reflect.TypeFor[wirePattern](), reflect.TypeFor[wireSpecial]()}},
	reflect.TypeFor[Sandbox]():        {union: []reflect.Type{reflect.TypeFor[wireSandbox](), reflect.TypeFor[oldSandbox]()}},
	reflect.TypeFor[Path]():           {schema: schema{Type: "string"}},
	reflect.TypeFor[ID]():             {schema: schema{AnyOf: []*schema{{Type: "integer"}, {Type: "string", MaxLength: MaxIdentifierBytes}}}},
	reflect.TypeFor[FileMode]():       {schema: schema{Type: "integer", Minimum: new(int64), Maximum: new(int64(maxFileMode))}},
	reflect.TypeFor[TCPCredit]():      {schema: schema{Type: "integer", Minimum: new(int64), Maximum: new(int64(MaxTCPCredit))}},
	reflect.TypeFor[uint16]():         {schema: schema{Type: "integer", Minimum: new(int64(1)), Maximum: new(int64(65535))}},
	reflect.TypeFor[[]byte]():         {schema: schema{Type: "string", ContentEncoding: "base64"}},
	reflect.TypeFor[Base64]():         {schema: schema{Type: "string", ContentEncoding: "base64"}},
}

// inline has the types that have no definition of their own in the schema.
var inline = map[reflect.Type]bool{
	reflect.TypeFor[FileMode](): true, reflect.TypeFor[TCPCredit](): true, reflect.TypeFor[listItem](): true,
	reflect.TypeFor[uint16](): true, reflect.TypeFor[[]byte](): true, reflect.TypeFor[Base64](): true,
}

// names has the definitions that are not called like their type.
var names = map[reflect.Type]string{
	reflect.TypeFor[startOuter]():       "ResolvedStart",
	reflect.TypeFor[resolvedStart]():    "ResolvedProcess",
	reflect.TypeFor[startIO]():          "StartStreams",
	reflect.TypeFor[startPipe]():        "StartPipe",
	reflect.TypeFor[wireRequest]():      "Request",
	reflect.TypeFor[wireNotification](): "Notification",
	reflect.TypeFor[wireResponse]():     "Response",
	reflect.TypeFor[wireFailure]():      "ErrorResponse",
	reflect.TypeFor[wireTrace]():        "TraceContext",
	reflect.TypeFor[wireSandbox]():      "SandboxPolicy",
	reflect.TypeFor[oldSandbox]():       "OlderSandboxPolicy",
	reflect.TypeFor[wirePermissions]():  "SandboxPermissions",
	reflect.TypeFor[wireContext]():      "SandboxContext",
	reflect.TypeFor[wireFiles]():        "SandboxFiles",
	reflect.TypeFor[wireFileEntry]():    "SandboxEntry",
	reflect.TypeFor[wireFilePath]():     "SandboxPath",
	reflect.TypeFor[wireOnePath]():      "SandboxOnePath",
	reflect.TypeFor[wirePattern]():      "SandboxPattern",
	reflect.TypeFor[wireSpecial]():      "SandboxSpecialPath",
	reflect.TypeFor[wireSpecialValue](): "SandboxSpecialValue",
	reflect.TypeFor[ordinaryStart]():    "OrdinaryStart",
}

// raw has what stands in members that are decoded later, by their names.
var raw = map[string]reflect.Type{
	"sandbox": reflect.TypeFor[Sandbox](),
	"data":    nil, "params": nil, "result": nil, "managedNetwork": nil, "networkProxy": nil, "sandboxPolicy": nil, "temporaryDirectories": nil, "windowsSandboxPrivateDesktop": nil,
}

// exceptions changes single members, which an encoder leaves out or sends as null.
var exceptions = map[string]struct{ optional, null bool }{
	"ReadResult.firstSeq":               {optional: true},
	"ReadResult.droppedBytes":           {optional: true},
	"ReadBackgroundResult.firstSeq":     {optional: true},
	"ReadBackgroundResult.droppedBytes": {optional: true},
	"ExitRecord.exitCode":               {null: true},
	"PathResult.path":                   {null: true},
	"ordinaryStart.tty":                 {optional: true},
}

// The types below are messages that have no type elsewhere, as they are on the wire.

// Request asks for an answer with the same id.
type wireRequest struct {
	ID     ID              `json:"id"`               // The answer has the same id.
	Method string          `json:"method"`           // The name of the method.
	Params json.RawMessage `json:"params,omitempty"` // The params of the method.
	Trace  *wireTrace      `json:"trace,omitempty"`  // The trace that the request belongs to.
}

// Notification has no answer.
type wireNotification struct {
	Method string          `json:"method"`           // The name of the notification.
	Params json.RawMessage `json:"params,omitempty"` // The params of the notification.
}

// Response answers a request that succeeded.
type wireResponse struct {
	ID     ID              `json:"id"`     // The id of the request.
	Result json.RawMessage `json:"result"` // The result of the method.
}

// ErrorResponse answers a request that failed, or input that was not a message.
type wireFailure struct {
	ID    ID    `json:"id"`    // The id of the request, or -1 if the input was not a message.
	Error Error `json:"error"` // The reason.
}

// TraceContext is a trace context as W3C defines it.
type wireTrace struct {
	Traceparent *string `json:"traceparent,omitempty"` // The position of the request in the trace.
	Tracestate  *string `json:"tracestate,omitempty"`  // Data of the systems that take part in the trace.
}

// OrdinaryStart lets the server look up the program and build the environment.
type ordinaryStart struct {
	StartParams
	// Standard input and output. It replaces tty, pipeStdin and size, which are then optional
	// and must agree with it.
	IO *startIO `json:"io,omitempty"`
}

type wireRead struct {
	ReadResult
	Exited        bool `json:"exited"`        // The process has exited.
	SandboxDenied bool `json:"sandboxDenied"` // A sandbox seems to have denied something to the process.
	exitMembers
}

type wireExited struct {
	ProcessID     string `json:"processId"`     // The process.
	Seq           uint64 `json:"seq"`           // The number of the event.
	SandboxDenied bool   `json:"sandboxDenied"` // A sandbox seems to have denied something to the process.
	exitMembers
}

type wireList struct {
	Processes []listItem `json:"processes"`           // The processes of each session in the order of their starts, then the background processes.
	Truncated bool       `json:"truncated,omitempty"` // The server left out sessions, because there were too many processes.
}

type listItem struct{}

// SandboxPolicy says what the server must enforce.
type wireSandbox struct {
	Permissions         wirePermissions `json:"permissions"`                                                                                                         // The rules.
	Cwd                 *Path           `json:"cwd,omitempty"`                                                                                                       // The directory that relative patterns begin in; in process/start the default is that of the process.
	WorkspaceRoots      *[]Path         `json:"workspaceRoots,omitempty"`                                                                                            // The meaning of `project_roots`; absent means `cwd`, and an empty list means nothing.
	PolicyContext       *wireContext    `json:"policyContext,omitempty"`                                                                                             // Replaces `cwd` and `workspaceRoots`.
	WindowsSandboxLevel string          `json:"windowsSandboxLevel" wire:"enum=disabled|restricted-token|elevated|mxc"`                                              // Has no effect, but the server refuses `mxc`.
	SandboxOverride     string          `json:"sandboxOverride,omitempty" wire:"absent=,enum=noOverride|escalatedSandboxWithRestrictions|bypassSandboxFirstAttempt"` // Has no effect.
	PrivateDesktop      json.RawMessage `json:"windowsSandboxPrivateDesktop,omitempty"`                                                                              // Has no effect.
	UseLegacyLandlock   bool            `json:"useLegacyLandlock,omitempty" wire:"absent=false"`                                                                     // Has no effect.
	UserHomeDir         *Path           `json:"userHomeDir,omitempty"`                                                                                               // Has no effect.
	TemporaryDirs       json.RawMessage `json:"temporaryDirectories,omitempty"`                                                                                      // Has no effect.
}

// OlderSandboxPolicy is the form of clients before 0.124. New clients must not send it.
type oldSandbox struct {
	Type                *string         `json:"type,omitempty"`                // The kind of the policy, unless `sandboxPolicy` has it.
	SandboxPolicy       json.RawMessage `json:"sandboxPolicy,omitempty"`       // The policy.
	WindowsSandboxLevel *string         `json:"windowsSandboxLevel,omitempty"` // Has no effect.
	SandboxPolicyCwd    *Path           `json:"sandboxPolicyCwd,omitempty"`    // The workspace.
}

// SandboxContext is where a policy applies.
type wireContext struct {
	Cwd            *Path   `json:"cwd,omitempty"`            // As in the policy.
	WorkspaceRoots *[]Path `json:"workspaceRoots,omitempty"` // As in the policy.
}

// SandboxPermissions are the rules of a policy.
type wirePermissions struct {
	Type       string     `json:"type" wire:"enum=managed|disabled|external"`               // `managed` enforces files and network, `external` only the network, `disabled` nothing.
	FileSystem *wireFiles `json:"file_system,omitempty"`                                    // The rules about files; required with `managed`.
	Network    string     `json:"network,omitempty" wire:"absent=,enum=restricted|enabled"` // Whether the process may use the network; required unless `type` is `disabled`.
}

// SandboxFiles are the rules about files. A path without an entry is out of reach.
type wireFiles struct {
	Type             string           `json:"type" wire:"enum=restricted|unrestricted"` // `unrestricted` allows everything.
	Entries          *[]wireFileEntry `json:"entries,omitempty"`                        // At most 512 entries; required with `restricted`.
	GlobScanMaxDepth *uint64          `json:"glob_scan_max_depth,omitempty"`            // The largest number of directories that `**` of a pattern matches.
}

// SandboxEntry grants or denies access to a path and everything below it. The longest entry
// for a path counts, and of two for the same path `deny` counts before `write` before `read`.
type wireFileEntry struct {
	Path                wireFilePath `json:"path"`                                             // The files that the entry is about.
	Access              string       `json:"access" wire:"enum=read|write|deny|none"`          // The access to them; `none` means `deny`.
	MissingPathBehavior *string      `json:"missing_path_behavior,omitempty" wire:"enum=skip"` // What to do if there is no such path: `skip` ignores the entry.
}

// SandboxPath says which files an entry is about.
type wireFilePath struct{}

// SandboxOnePath is one path.
type wireOnePath struct {
	Type string `json:"type" wire:"enum=path"` // Always `path`.
	Path Path   `json:"path"`                  // The path.
}

// SandboxPattern is all paths that match a pattern. Only entries that deny may have one.
type wirePattern struct {
	Type    string `json:"type" wire:"enum=glob_pattern"` // Always `glob_pattern`.
	Pattern string `json:"pattern"`                       // At most 4096 bytes, with `*`, `?`, `[a-z]`, `[!a-z]`, `**` and `{a,b}`.
}

// SandboxSpecialPath is a path that depends on the machine or the workspace.
type wireSpecial struct {
	Type  string           `json:"type" wire:"enum=special"` // Always `special`.
	Value wireSpecialValue `json:"value"`                    // Which one.
}

// SandboxSpecialValue names a special path.
type wireSpecialValue struct {
	Kind    string  `json:"kind" wire:"enum=root|minimal|project_roots|current_working_directory|tmpdir|slash_tmp|unknown"` // `current_working_directory` is an older name of `project_roots`.
	Subpath *string `json:"subpath,omitempty"`                                                                              // A path within `project_roots`.
}
