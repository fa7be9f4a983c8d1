package protocol_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/protocol"
)

// decoders are the decoders of params, by the name that the protocol gives the type.
var decoders = map[string]func(json.RawMessage) (any, error){
	"InitializeParams":            decoder(protocol.DecodeParams[protocol.InitializeParams]),
	"ExecParams":                  decoder(protocol.DecodeParams[protocol.StartParams]),
	"ReadParams":                  decoder(protocol.DecodeParams[protocol.ReadParams]),
	"WriteParams":                 decoder(protocol.DecodeParams[protocol.WriteParams]),
	"SignalParams":                decoder(protocol.DecodeParams[protocol.SignalParams]),
	"TerminateParams":             decoder(protocol.DecodeParams[protocol.TerminateParams]),
	"CloseStdinParams":            decoder(protocol.DecodeParams[protocol.CloseStdinParams]),
	"ResizeParams":                decoder(protocol.DecodeParams[protocol.ResizeParams]),
	"AckParams":                   decoder(protocol.DecodeParams[protocol.AckParams]),
	"WaitParams":                  decoder(protocol.DecodeParams[protocol.WaitParams]),
	"SnapshotParams":              decoder(protocol.DecodeParams[protocol.SnapshotParams]),
	"FsParams":                    decoder(protocol.DecodeParams[protocol.FileParams]),
	"FsWriteFileParams":           decoder(protocol.DecodeParams[protocol.WriteFileParams]),
	"FsCreateDirectoryParams":     decoder(protocol.DecodeParams[protocol.CreateDirectoryParams]),
	"FsRemoveParams":              decoder(protocol.DecodeParams[protocol.RemoveParams]),
	"FsCopyParams":                decoder(protocol.DecodeParams[protocol.CopyParams]),
	"FsRenameParams":              decoder(protocol.DecodeParams[protocol.RenameParams]),
	"FsSetMetadataParams":         decoder(protocol.DecodeParams[protocol.SetMetadataParams]),
	"FsSymlinkParams":             decoder(protocol.DecodeParams[protocol.SymlinkParams]),
	"TCPMoreCredit":               decoder(protocol.DecodeParams[protocol.TCPMoreCredit]),
	"TCPReset":                    decoder(protocol.DecodeParams[protocol.TCPReset]),
	"KeepParams":                  decoder(protocol.DecodeParams[protocol.KeepParams]),
	"FsJoinParams":                decoder(protocol.DecodeParams[protocol.JoinParams]),
	"FsWalkParams":                decoder(protocol.DecodeParams[protocol.WalkParams]),
	"FsOpenParams":                decoder(protocol.DecodeParams[protocol.OpenParams]),
	"FsReadBlockParams":           decoder(protocol.DecodeParams[protocol.ReadBlockParams]),
	"FsWriteBlockParams":          decoder(protocol.DecodeParams[protocol.WriteBlockParams]),
	"FsCloseParams":               decoder(protocol.DecodeParams[protocol.CloseParams]),
	"FsWatchMissingParams":        decoder(protocol.DecodeParams[protocol.WatchMissingParams]),
	"FsWatchParams":               decoder(protocol.DecodeParams[protocol.WatchParams]),
	"FsUnwatchParams":             decoder(protocol.DecodeParams[protocol.UnwatchParams]),
	"EnvironmentConfigReadParams": decoder(protocol.DecodeParams[protocol.EnvironmentConfigReadParams]),

	"HttpRequestParams":                decoder(protocol.DecodeParams[protocol.HTTPRequest]),
	"HttpRequestBodyDeltaNotification": decoder(protocol.DecodeParams[protocol.HTTPBodyDelta]),

	"CapabilityRootsDiscoverParams": decoder(protocol.DecodeParams[protocol.DiscoverRootsParams]),
	"ExecOutputDeltaNotification":   decoder(protocol.DecodeParams[protocol.Output]),
}

func decoder[T any](decode func(json.RawMessage) (T, error)) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) { return decode(raw) }
}

// whole are params with nothing but what is required.
var whole = map[string]string{
	"InitializeParams":            `{"clientName":"c"}`,
	"ExecParams":                  `{"processId":"p","argv":["a"],"cwd":"/","env":{},"tty":false}`,
	"ReadParams":                  `{"processId":"p"}`,
	"WriteParams":                 `{"processId":"p","chunk":"aGk="}`,
	"SignalParams":                `{"processId":"p","signal":"interrupt"}`,
	"TerminateParams":             `{"processId":"p"}`,
	"CloseStdinParams":            `{"processId":"p"}`,
	"ResizeParams":                `{"processId":"p","size":{"rows":1,"cols":65535}}`,
	"AckParams":                   `{"processId":"p","seq":1}`,
	"WaitParams":                  `{"processId":"p"}`,
	"SnapshotParams":              `{"processId":"p"}`,
	"FsParams":                    `{"path":"/"}`,
	"FsWriteFileParams":           `{"path":"/f","dataBase64":"aGk="}`,
	"FsCreateDirectoryParams":     `{"path":"/d"}`,
	"FsRemoveParams":              `{"path":"/f"}`,
	"FsCopyParams":                `{"sourcePath":"/f","destinationPath":"/g","recursive":false}`,
	"FsRenameParams":              `{"sourcePath":"/f","destinationPath":"/g"}`,
	"FsSetMetadataParams":         `{"path":"/f"}`,
	"FsSymlinkParams":             `{"path":"/l","target":"t"}`,
	"TCPMoreCredit":               `{"streamId":"s","bytes":1}`,
	"TCPReset":                    `{"streamId":"s"}`,
	"KeepParams":                  `{"keepMs":1}`,
	"FsJoinParams":                `{"basePath":"/d","path":"f"}`,
	"FsWalkParams":                `{"path":"/d","options":{"maxDepth":1,"maxDirectories":2,"maxEntries":3,"followDirectorySymlinks":true}}`,
	"FsOpenParams":                `{"handleId":"h","path":"/f"}`,
	"FsReadBlockParams":           `{"handleId":"h","offset":0,"len":1}`,
	"FsWriteBlockParams":          `{"handleId":"h","offset":0,"chunk":"aGk="}`,
	"FsCloseParams":               `{"handleId":"h"}`,
	"FsWatchMissingParams":        `{"watchId":1,"missing":["/f"]}`,
	"FsWatchParams":               `{"watchId":"w","path":"/d"}`,
	"FsUnwatchParams":             `{"watchId":"w"}`,
	"EnvironmentConfigReadParams": `{"cwd":"/","configPaths":[["a","b"]],"requirementsPaths":[]}`,

	"HttpRequestParams":                `{"method":"GET","url":"http://h/","requestId":"r"}`,
	"HttpRequestBodyDeltaNotification": `{"requestId":"r","seq":1,"deltaBase64":"","done":false}`,

	"CapabilityRootsDiscoverParams": `{"roots":[{"id":"a","path":"/"}]}`,
	"ExecOutputDeltaNotification":   `{"processId":"p","seq":1,"stream":"stdout","chunk":""}`,
}

// TestDecodersAlike holds every decoder to what is the same for all.
func TestDecodersAlike(t *testing.T) {
	for name, decode := range decoders {
		t.Run(name, func(t *testing.T) {
			refuse := func(in, want string) {
				t.Helper()
				_, err := decode(raw(in))
				if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != protocol.CodeInvalidParams || e.Message != want {
					t.Errorf("%s: error %#v, want %q", in, err, want)
				}
			}
			for in, kind := range map[string]string{
				"": "nothing", "null": "null", "true": "a boolean", "3": "3", "[]": "an array", `"x"`: "a string",
			} {
				refuse(in, "invalid params: expected an object, got "+kind)
			}
			plain, err := decode(raw(whole[name]))
			if err != nil {
				t.Fatal(err)
			}
			var members map[string]json.RawMessage
			if err := json.Unmarshal(raw(whole[name]), &members); err != nil {
				t.Fatal(err)
			}
			for member := range members {
				less := make(map[string]json.RawMessage)
				for name, value := range members {
					if name != member {
						less[name] = value
					}
				}
				refuse(text(t, less), "invalid params: "+member+": missing")
				// Names are compared exactly.
				less[strings.ToUpper(member[:1])+member[1:]] = members[member]
				refuse(text(t, less), "invalid params: "+member+": missing")
				// A value of another type is refused, with the name of the member.
				for _, value := range []string{"null", "true", "1", `"x"`, "[]", "{}"} {
					if value[0] == members[member][0] || value == "true" && members[member][0] == 'f' || value == "1" && members[member][0] <= '9' && members[member][0] >= '0' {
						continue
					}
					less[member] = raw(value)
					_, err := decode(raw(text(t, less)))
					if !errors.Is(err, protocol.ErrInvalidParams) || !strings.HasPrefix(err.Error(), "invalid params: "+member+": ") {
						t.Errorf("%s %s: %v", member, value, err)
					}
				}
			}
			// What is unknown does not matter.
			members["unknown"] = raw(`{"processId":[1]}`)
			got, err := decode(raw(text(t, members)))
			if diff := cmp.Diff(plain, got, cmp.AllowUnexported(protocol.Path{})); err != nil || diff != "" {
				t.Errorf("an unknown member: %v\n%s", err, diff)
			}
		})
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDecodeTexts is about the members one by one: each row replaces or adds
// members in what is whole.
func TestDecodeTexts(t *testing.T) {
	const policy = `{"inherit":"all","ignoreDefaultExcludes":true,"exclude":[],"set":{},"includeOnly":[]}`
	for _, test := range []struct{ name, members, want string }{
		{"InitializeParams", `"clientName":1`, "clientName: expected a string, got 1"},
		{"InitializeParams", `"clientName":""`, ""},
		{"InitializeParams", `"resumeSessionId":null`, ""},
		{"InitializeParams", `"resumeSessionId":7`, "resumeSessionId: expected a string, got 7"},

		{"ExecParams", `"processId":""`, ""},
		{"ExecParams", `"argv":"sh"`, "argv: expected an array, got a string"},
		{"ExecParams", `"argv":["sh",1]`, "argv[1]: expected a string, got 1"},
		{"ExecParams", `"argv":[]`, ""},
		{"ExecParams", `"enforceManagedNetwork":null`, "enforceManagedNetwork: expected a boolean, got null"},
		{"ExecParams", `"timeoutMs":null,"maxOutputBytes":1,"memoryBytes":18446744073709551615,"pids":0,"cpus":1.5e-1`, ""},
		{"ExecParams", `"timeoutMs":-1`, "timeoutMs: expected a whole number from 0 to 18446744073709551615, got -1"},
		{"ExecParams", `"pids":1.5`, "pids: expected a whole number from 0 to 18446744073709551615, got 1.5"},
		{"ExecParams", `"cpus":"2"`, "cpus: expected a number of double precision, got a string"},
		{"ExecParams", `"env":null`, "env: expected an object, got null"},
		{"ExecParams", `"env":[]`, "env: expected an object, got an array"},
		{"ExecParams", `"tty":null`, "tty: expected a boolean, got null"},
		{"ExecParams", `"arg0":null,"pipeStdin":true,"sandbox":null,"metadata":null,"envPolicy":null`, ""},
		{"ExecParams", `"metadata":{}`, ""},
		{"ExecParams", `"metadata":{"toolCallId":"anything"}`, ""},
		{"ExecParams", `"metadata":{"threadId":"01234567-89ab-CDEF-0123-456789abcdef"}`, ""},
		{"ExecParams", `"metadata":{"threadId":"nonsense"}`, `metadata.threadId: "nonsense" is not a UUID`},
		{"ExecParams", `"metadata":{"threadId":"01234567-89ab-cdef-0123-456789abcdeg"}`, `metadata.threadId: "01234567-89ab-cdef-0123-456789abcdeg" is not a UUID`},
		{"ExecParams", `"metadata":{"threadId":"01234567089ab-cdef-0123-456789abcdef"}`, `metadata.threadId: "01234567089ab-cdef-0123-456789abcdef" is not a UUID`},
		{"ExecParams", `"metadata":[]`, "metadata: expected an object, got an array"},
		{"ExecParams", `"envPolicy":` + policy, ""},
		{"ExecParams", `"envPolicy":{}`, "envPolicy.inherit: missing"},
		{"ExecParams", `"envPolicy":` + strings.Replace(policy, "all", "some", 1), `envPolicy.inherit: expected one of core, all, none, got "some"`},
		{"ExecParams", `"envPolicy":` + strings.Replace(policy, "[]", "null", 1), "envPolicy.exclude: expected an array, got null"},

		{"ReadParams", `"afterSeq":null,"maxBytes":null,"waitMs":null`, ""},
		{"ReadParams", `"afterSeq":18446744073709551615,"maxBytes":0,"waitMs":18446744073709551615`, ""},
		{"ReadParams", `"waitMs":"1"`, "waitMs: expected a whole number from 0 to 18446744073709551615, got a string"},
		{"ReadParams", `"waitMs":false`, "waitMs: expected a whole number from 0 to 18446744073709551615, got a boolean"},

		{"WriteParams", `"chunk":""`, ""},
		{"WriteParams", `"chunk":"aG\u006b\u003d"`, ""},
		{"WriteParams", `"chunk":"aGk"`, "chunk: illegal base64 data at input byte 0"},
		{"WriteParams", `"chunk":"!!!!"`, "chunk: illegal base64 data at input byte 0"},
		{"WriteParams", `"chunk":"ab-_"`, "chunk: illegal base64 data at input byte 2"},
		{"WriteParams", `"chunk":"aGk=\n"`, "chunk: illegal base64 data at input byte 4"},
		{"WriteParams", `"writeId":null`, ""},
		{"WriteParams", `"writeId":"1"`, ""},
		{"WriteParams", `"writeId":""`, "writeId must not be empty"},
		// The chunk is checked before the id of the write.
		{"WriteParams", `"writeId":"","chunk":"a"`, "chunk: illegal base64 data at input byte 0"},

		{"SignalParams", `"signal":"kill"`, ""},
		{"SignalParams", `"signal":"SIGUSR1","toForeground":true`, ""},
		{"SignalParams", `"signal":"SigHup"`, ""},
		{"SignalParams", `"signal":"INTERRUPT"`, `signal: expected interrupt or the name of a signal such as SIGTERM, got "INTERRUPT"`},
		{"SignalParams", `"signal":"SIG"`, `signal: expected interrupt or the name of a signal such as SIGTERM, got "SIG"`},
		{"SignalParams", `"signal":"SIGSIGINT"`, `signal: expected interrupt or the name of a signal such as SIGTERM, got "SIGSIGINT"`},
		{"SignalParams", `"signal":"9"`, `signal: expected interrupt or the name of a signal such as SIGTERM, got "9"`},

		{"InitializeParams", `"observeSessionId":"s","capabilities":{"processAck":true,"unknown":1}`, ""},
		{"InitializeParams", `"observeSessionId":null,"capabilities":null`, ""},
		{"InitializeParams", `"observeSessionId":"s","resumeSessionId":"s"`, "`resumeSessionId` and `observeSessionId` exclude each other"},
		{"InitializeParams", `"capabilities":[]`, "capabilities: expected an object, got an array"},

		{"ResizeParams", `"size":{"rows":0,"cols":1}`, "size.rows: expected a whole number from 1 to 65535, got 0"},
		{"ResizeParams", `"size":{"rows":1,"cols":65536}`, "size.cols: expected a whole number from 1 to 65535, got 65536"},
		{"ResizeParams", `"size":{"rows":"1","cols":1}`, "size.rows: expected a whole number from 1 to 65535, got a string"},
		{"ResizeParams", `"size":{"rows":1}`, "size.cols: missing"},
		{"ResizeParams", `"size":[24,80]`, "size: expected an object, got an array"},

		{"TerminateParams", `"mode":"force"`, ""},
		{"TerminateParams", `"mode":null,"timeoutMs":null`, ""},
		{"TerminateParams", `"mode":"graceful","timeoutMs":0`, ""},
		{"TerminateParams", `"mode":"graceful"`, "timeoutMs: missing"},
		{"TerminateParams", `"mode":"graceful","timeoutMs":3600001`, "timeoutMs: 3600001 ms, the limit is 3600000"},
		{"TerminateParams", `"timeoutMs":1`, "timeoutMs: only for the mode graceful"},
		{"TerminateParams", `"mode":"gentle"`, `mode: expected one of force, graceful, got "gentle"`},

		{"AckParams", `"seq":18446744073709551615`, ""},
		{"WaitParams", `"waitMs":null`, ""},
		{"WaitParams", `"waitMs":18446744073709551615`, ""},

		{"FsParams", `"followSymlinks":null,"sandbox":null`, ""},

		{"HttpRequestParams", `"requestId":""`, ""},
		{"HttpRequestParams", `"headers":[]`, ""},
		{"HttpRequestParams", `"headers":{}`, "headers: expected an array, got an object"},
		{"HttpRequestParams", `"headers":[1]`, "headers[0]: expected an object, got 1"},
		{"HttpRequestParams", `"headers":[{}]`, "headers[0].name: missing"},
		{"HttpRequestParams", `"headers":[{"name":"a","value":"b"},{"name":"a"}]`, "headers[1].value: missing"},
		{"HttpRequestParams", `"headers":[{"name":"a","value":"","valueEnvVar":null,"x":[]}]`, ""},
		{"HttpRequestParams", `"bodyBase64":null`, ""},
		{"HttpRequestParams", `"bodyBase64":""`, ""},
		{"HttpRequestParams", `"bodyBase64":"!"`, "bodyBase64: illegal base64 data at input byte 0"},
		{"HttpRequestParams", `"bodyBase64":"aGk"`, "bodyBase64: illegal base64 data at input byte 0"},
		{"HttpRequestParams", `"bodyBase64":"aGk=\n"`, "bodyBase64: illegal base64 data at input byte 4"},
		{"HttpRequestParams", `"bodyBase64":"ab-_"`, "bodyBase64: illegal base64 data at input byte 2"},
		{"HttpRequestParams", `"timeoutMs":null`, ""},
		{"HttpRequestParams", `"timeoutMs":18446744073709551615`, ""},
		{"HttpRequestParams", `"redirectPolicy":"stop"`, ""},
		{"HttpRequestParams", `"redirectPolicy":"follow"`, ""},
		{"HttpRequestParams", `"redirectPolicy":null`, "redirectPolicy: expected a string, got null"},
		{"HttpRequestParams", `"redirectPolicy":1`, "redirectPolicy: expected a string, got 1"},
		{"HttpRequestParams", `"redirectPolicy":[]`, "redirectPolicy: expected a string, got an array"},
		{"HttpRequestParams", `"redirectPolicy":"Stop"`, `redirectPolicy: expected one of follow, stop, got "Stop"`},

		{"HttpRequestBodyDeltaNotification", `"deltaBase64":"a"`, "deltaBase64: illegal base64 data at input byte 0"},
		{"HttpRequestBodyDeltaNotification", `"error":null`, ""},
		// The data is looked at later: what is wrong with it has another code.
		{"FsWriteFileParams", `"dataBase64":"!"`, ""},
		{"FsWriteFileParams", `"followSymlinks":null,"sandbox":null,"expectedSha256":null,"mode":null`, ""},
		{"FsWriteFileParams", `"mode":4095`, ""},
		{"FsWriteFileParams", `"mode":4096`, "mode: must not exceed 4095 (octal 7777)"},
		{"FsWriteFileParams", `"expectedSha256":"` + strings.Repeat("aF", 32) + `"`, ""},
		{"FsWriteFileParams", `"expectedSha256":""`, "expectedSha256 must be 64 hex digits"},
		{"FsWriteFileParams", `"expectedSha256":"` + strings.Repeat("g", 64) + `"`, "expectedSha256 must be 64 hex digits"},

		{"FsCreateDirectoryParams", `"recursive":null,"followSymlinks":null`, ""},
		{"FsRemoveParams", `"recursive":null,"force":null,"followSymlinks":null`, ""},
		{"FsCopyParams", `"destinationPath":"x"`, `destinationPath: "x" is neither an absolute path nor a file: URI`},
		{"FsRenameParams", `"noReplace":null`, ""},
		{"FsSetMetadataParams", `"mode":null,"modifiedAtMs":null,"modifiedNs":null,"size":null,"followSymlinks":null`, ""},
		{"FsSetMetadataParams", `"mode":4096`, "mode: must not exceed 4095 (octal 7777)"},
		{"FsSetMetadataParams", `"size":9223372036854775808`, "size must not exceed 9223372036854775807"},
		{"FsSetMetadataParams", `"modifiedNs":0`, "modifiedNs requires modifiedAtMs"},
		{"FsSetMetadataParams", `"modifiedAtMs":0,"modifiedNs":999999`, ""},
		{"FsSetMetadataParams", `"modifiedAtMs":0,"modifiedNs":1000000`, "modifiedNs must be less than 1000000"},
		{"FsSetMetadataParams", `"modifiedAtMs":253402300800000`, "modifiedAtMs must not exceed 253402300799999"},
		{"FsWriteFileParams", `"modifiedNs":1`, "modifiedNs requires modifiedAtMs"},
		{"FsSymlinkParams", `"target":null`, "target: missing"},
		{"FsSymlinkParams", `"target":"\ufffd","targetBase64":"/w=="`, ""},
		{"FsSymlinkParams", `"targetBase64":"x"`, "targetBase64: illegal base64 data at input byte 0"},
		{"FsCreateDirectoryParams", `"mode":4096`, "mode: must not exceed 4095 (octal 7777)"},

		{"FsJoinParams", `"path":"","relativePath":"y"`, ""},

		{"FsWalkParams", `"options":{}`, "options.maxDepth: missing"},
		{"FsWalkParams", `"options":{"maxDepth":1,"maxDirectories":2,"maxEntries":3}`, "options.followDirectorySymlinks: missing"},
		{"FsWalkParams", `"options":{"maxDepth":0,"maxDirectories":0,"maxEntries":0,"followDirectorySymlinks":true,"pruneHiddenDirectories":true}`, ""},

		{"FsOpenParams", `"handleId":""`, ""},
		{"FsOpenParams", `"mode":"read"`, ""},
		{"FsOpenParams", `"mode":"replace"`, ""},
		{"FsOpenParams", `"mode":"update"`, ""},
		{"FsOpenParams", `"createMode":511`, ""},
		{"FsOpenParams", `"createMode":512`, "createMode must not exceed 511 (octal 777)"},
		{"FsOpenParams", `"mode":"append"`, `mode: expected one of read, replace, update, got "append"`},
		{"FsReadBlockParams", `"offset":18446744073709551615,"len":0`, ""},
		{"FsWriteBlockParams", `"chunk":"aGk"`, "chunk: illegal base64 data at input byte 0"},

		{"FsWatchMissingParams", `"watchId":18446744073709551615,"missing":[],"present":null`, ""},
		{"FsWatchMissingParams", `"missing":["a"]`, `missing[0]: "a" is neither an absolute path nor a file: URI`},
		{"FsWatchMissingParams", `"missing":["file://host/a"],"present":"file:///C:/x"`, ""},
		{"FsWatchParams", `"cursor":null`, ""},
		{"FsWatchParams", `"watchId":"` + strings.Repeat("x", 257) + `"`, "watchId: 257 bytes long, the limit is 256 bytes"},
		{"FsUnwatchParams", `"watchId":"` + strings.Repeat("x", 257) + `"`, "watchId: 257 bytes long, the limit is 256 bytes"},

		{"EnvironmentConfigReadParams", `"configPaths":[]`, "at least one config or requirements path is required"},
		{"EnvironmentConfigReadParams", `"requirementsPaths":[[]]`, "TOML paths must contain at least one key segment"},

		{"CapabilityRootsDiscoverParams", `"roots":[]`, ""},
		{"CapabilityRootsDiscoverParams", `"roots":[{"id":"a","path":"/","sandbox":null}]`, ""},
		{"CapabilityRootsDiscoverParams", `"roots":[{"path":"/"}]`, "roots[0].id: missing"},
		{"CapabilityRootsDiscoverParams", `"roots":[{"id":"a","path":"x"}]`, `roots[0].path: "x" is neither an absolute path nor a file: URI`},

		{"ExecOutputDeltaNotification", `"seq":18446744073709551615`, ""},
	} {
		var members, changes map[string]json.RawMessage
		if err := errors.Join(json.Unmarshal(raw(whole[test.name]), &members), json.Unmarshal(raw("{"+test.members+"}"), &changes)); err != nil {
			t.Fatal(test.members, err)
		}
		for name, value := range changes {
			members[name] = value
		}
		in := text(t, members)
		_, err := decoders[test.name](raw(in))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", in, err)
		case test.want != "" && (err == nil || err.Error() != "invalid params: "+test.want || !errors.Is(err, protocol.ErrInvalidParams)):
			t.Errorf("%s: error %v, want %q", in, err, test.want)
		}
	}
}

// TestNullIsNotEmpty covers members whose absence differs from their zero value.
func TestNullIsNotEmpty(t *testing.T) {
	initialize, err := protocol.DecodeParams[protocol.InitializeParams](raw(`{"clientName":"","resumeSessionId":""}`))
	if err != nil || initialize.ResumeSessionID == nil || *initialize.ResumeSessionID != "" {
		t.Errorf("an empty session id: %+v, %v", initialize, err)
	}
	read, err := protocol.DecodeParams[protocol.ReadParams](raw(`{"processId":"","afterSeq":0,"maxBytes":null}`))
	if err != nil || read.AfterSeq == nil || *read.AfterSeq != 0 || read.MaxBytes != nil || read.WaitMs != nil {
		t.Errorf("zero and null: %+v, %v", read, err)
	}
	file, err := protocol.DecodeParams[protocol.FileParams](raw(`{"path":"/","sandboxPolicy":{"a":1}}`))
	if err != nil || !file.FollowSymlinks || string(file.Sandbox) != `{"a":1}` {
		t.Errorf("defaults of a file: %+v, %v", file, err)
	}
	file, err = protocol.DecodeParams[protocol.FileParams](raw(`{"path":"/","followSymlinks":false,"sandbox":[],"sandboxPolicy":1}`))
	if err != nil || file.FollowSymlinks || string(file.Sandbox) != `[]` {
		t.Errorf("members of a file: %+v, %v", file, err)
	}
}

// TestDecodeFileDefaults covers what is true unless it is said, and both names
// of one member.
func TestDecodeFileDefaults(t *testing.T) {
	create, err := protocol.DecodeParams[protocol.CreateDirectoryParams](raw(`{"path":"/d","recursive":null}`))
	if err != nil || !create.Recursive || !create.FollowSymlinks {
		t.Errorf("create: %+v, %v", create, err)
	}
	create, err = protocol.DecodeParams[protocol.CreateDirectoryParams](raw(`{"path":"/d","recursive":false,"followSymlinks":false}`))
	if err != nil || create.Recursive || create.FollowSymlinks {
		t.Errorf("create: %+v, %v", create, err)
	}
	remove, err := protocol.DecodeParams[protocol.RemoveParams](raw(`{"path":"/d","force":false}`))
	if err != nil || !remove.Recursive || remove.Force || !remove.FollowSymlinks {
		t.Errorf("remove: %+v, %v", remove, err)
	}
	rename, err := protocol.DecodeParams[protocol.RenameParams](raw(`{"sourcePath":"/a","destinationPath":"/b","sandboxPolicy":{}}`))
	if err != nil || rename.NoReplace || !rename.FollowSymlinks || string(rename.Sandbox) != "{}" {
		t.Errorf("rename: %+v, %v", rename, err)
	}
	open, err := protocol.DecodeParams[protocol.OpenParams](raw(`{"handleId":"h","path":"/a"}`))
	if err != nil || open.Mode != protocol.OpenRead {
		t.Errorf("open: %+v, %v", open, err)
	}
	for _, in := range []string{`{"basePath":"/d","path":"x"}`, `{"basePath":"/d","relativePath":"x"}`} {
		if join, err := protocol.DecodeParams[protocol.JoinParams](raw(in)); err != nil || join.Path != "x" {
			t.Errorf("%s: %+v, %v", in, join, err)
		}
	}
	write, err := protocol.DecodeParams[protocol.WriteFileParams](raw(`{"path":"/f","dataBase64":"","mode":0,"expectedSha256":"` + strings.Repeat("0", 64) + `"}`))
	if err != nil || write.Mode == nil || *write.Mode != 0 || write.ExpectedSHA256 == nil || *write.ExpectedSHA256 != strings.Repeat("0", 64) || !write.FollowSymlinks {
		t.Errorf("write: %+v, %v", write, err)
	}
}

func TestDecodeStartWhole(t *testing.T) {
	in := `{"processId":"1-a","argv":["/bin/bash","-lc","x \u00fc"],"cwd":"file:///w%20d","env":{"TERM":"dumb","\u0041":"\n"},` +
		`"tty":true,"arg0":"","pipeStdin":true,"sandbox":{"a":[1]},"enforceManagedNetwork":true,"managedNetwork":{},"networkProxy":1,` +
		`"envPolicy":{"inherit":"core","ignoreDefaultExcludes":true,"exclude":["A*"],"set":{"B":"C"},"includeOnly":["D"]},` +
		`"metadata":{"threadId":"01234567-89ab-cdef-0123-456789abcdef","toolCallId":""}}`
	source := []byte(in)
	got, err := protocol.DecodeParams[protocol.StartParams](source)
	if err != nil {
		t.Fatal(err)
	}
	for i := range source { // what was decoded owes nothing to the text
		source[i] = '?'
	}
	empty, thread := "", "01234567-89ab-cdef-0123-456789abcdef"
	cwd, err := protocol.ParsePath("file:///w%20d")
	if err != nil {
		t.Fatal(err)
	}
	want := protocol.StartParams{
		ProcessID: "1-a", Argv: []string{"/bin/bash", "-lc", "x ü"}, Cwd: cwd, Env: map[string]string{"TERM": "dumb", "A": "\n"},
		TTY: true, Arg0: &empty, PipeStdin: true, Sandbox: raw(`{"a":[1]}`), EnforceManagedNetwork: true,
		ManagedNetwork: raw(`{}`), NetworkProxy: raw(`1`),
		EnvPolicy: &protocol.EnvPolicy{Inherit: "core", IgnoreDefaultExcludes: true, Exclude: []string{"A*"}, Set: map[string]string{"B": "C"}, IncludeOnly: []string{"D"}},
		Metadata:  &protocol.Metadata{ThreadID: &thread, ToolCallID: &empty},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(protocol.Path{})); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeHTTPRequestWhole(t *testing.T) {
	source := []byte(`{"method":"POST","url":"http://h/ü","headers":[{"name":"A","value":"1"},{"name":"a","value":"Bearer ","valueEnvVar":"T"}],` +
		`"bodyBase64":"aGk=","timeoutMs":0,"redirectPolicy":"stop","requestId":"r","streamResponse":true}`)
	got, err := protocol.DecodeParams[protocol.HTTPRequest](source)
	if err != nil {
		t.Fatal(err)
	}
	for i := range source { // what was decoded owes nothing to the text
		source[i] = '?'
	}
	variable, zero := "T", uint64(0)
	want := protocol.HTTPRequest{
		Method: "POST", URL: "http://h/ü", Headers: []protocol.HTTPHeader{{Name: "A", Value: "1"}, {Name: "a", Value: "Bearer ", ValueEnvVar: &variable}},
		Body: []byte("hi"), TimeoutMs: &zero, RedirectPolicy: protocol.RedirectStop, RequestID: "r", StreamResponse: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got, err = protocol.DecodeParams[protocol.HTTPRequest](raw(whole["HttpRequestParams"]))
	want = protocol.HTTPRequest{Method: "GET", URL: "http://h/", RequestID: "r", RedirectPolicy: protocol.RedirectFollow}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("defaults: %v\n%s", err, diff)
	}
}

func TestNoParams(t *testing.T) {
	for _, in := range []string{"", "null", "{}", "{ }"} {
		if _, err := protocol.DecodeParams[protocol.NoParams](raw(in)); err != nil {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, in := range []string{`{"a":1}`, `[]`, `[null]`, `0`, `""`, `false`} {
		if _, err := protocol.DecodeParams[protocol.NoParams](raw(in)); !errors.Is(err, protocol.ErrInvalidParams) {
			t.Errorf("%q: %v", in, err)
		}
	}
}
