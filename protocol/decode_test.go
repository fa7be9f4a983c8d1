package protocol_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/protocol"
)

// decoders are the decoders of params, by the type name that errors give.
var decoders = map[string]func(json.RawMessage) (any, error){
	"InitializeParams":            decoder(protocol.DecodeInitialize),
	"ExecParams":                  decoder(protocol.DecodeStart),
	"ReadParams":                  decoder(protocol.DecodeRead),
	"WriteParams":                 decoder(protocol.DecodeWrite),
	"SignalParams":                decoder(protocol.DecodeSignal),
	"TerminateParams":             decoder(protocol.DecodeTerminate),
	"FsParams":                    decoder(protocol.DecodeFile),
	"ExecOutputDeltaNotification": decoder(protocol.DecodeOutput),
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
	"FsParams":                    `{"path":"/"}`,
	"ExecOutputDeltaNotification": `{"processId":"p","seq":1,"stream":"stdout","chunk":""}`,
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
			want := ", expected struct " + name
			for in, kind := range map[string]string{
				"": "null", "null": "null", "true": "boolean", "3": "number", "[]": "sequence", `"x"`: `string "x"`,
			} {
				refuse(in, "invalid type: "+kind+want)
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
				refuse(text(t, less), "missing field `"+member+"`")
				// Names are compared exactly.
				less[strings.ToUpper(member[:1])+member[1:]] = members[member]
				refuse(text(t, less), "missing field `"+member+"`")
				// What is required is not null.
				less[member] = raw("null")
				if _, err := decode(raw(text(t, less))); !errors.Is(err, protocol.ErrInvalidParams) {
					t.Errorf("%s null: %v", member, err)
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
		{"InitializeParams", `"clientName":1`, "invalid type: number, expected a string"},
		{"InitializeParams", `"clientName":""`, ""},
		{"InitializeParams", `"resumeSessionId":null`, ""},
		{"InitializeParams", `"resumeSessionId":7`, "invalid type: number, expected a string"},

		{"ExecParams", `"processId":""`, ""},
		{"ExecParams", `"processId":true`, "invalid type: boolean, expected a string"},
		{"ExecParams", `"argv":"sh"`, "invalid type: string \"sh\", expected a sequence"},
		{"ExecParams", `"argv":["sh",1]`, "invalid type: number, expected a string"},
		{"ExecParams", `"argv":[null]`, "invalid type: null, expected a string"},
		{"ExecParams", `"argv":[]`, ""},
		{"ExecParams", `"env":null`, "invalid type: null, expected a map"},
		{"ExecParams", `"env":[]`, "invalid type: sequence, expected a map"},
		{"ExecParams", `"env":{"A":1}`, "invalid type: number, expected a string"},
		{"ExecParams", `"env":{"A":null}`, "invalid type: null, expected a string"},
		{"ExecParams", `"tty":null`, "invalid type: null, expected a boolean"},
		{"ExecParams", `"tty":0`, "invalid type: number, expected a boolean"},
		{"ExecParams", `"tty":"true"`, "invalid type: string \"true\", expected a boolean"},
		{"ExecParams", `"cwd":7`, "invalid type: number, expected a string"},
		{"ExecParams", `"arg0":null,"pipeStdin":true,"sandbox":null,"metadata":null,"envPolicy":null`, ""},
		{"ExecParams", `"arg0":[]`, "invalid type: sequence, expected a string"},
		{"ExecParams", `"pipeStdin":null`, "invalid type: null, expected a boolean"},
		{"ExecParams", `"enforceManagedNetwork":null`, "invalid type: null, expected a boolean"},
		{"ExecParams", `"metadata":{}`, ""},
		{"ExecParams", `"metadata":{"toolCallId":"anything"}`, ""},
		{"ExecParams", `"metadata":{"threadId":"01234567-89ab-CDEF-0123-456789abcdef"}`, ""},
		{"ExecParams", `"metadata":{"threadId":"nonsense"}`, `UUID parsing failed: "nonsense" is not a UUID`},
		{"ExecParams", `"metadata":{"threadId":"01234567-89ab-cdef-0123-456789abcdeg"}`, `UUID parsing failed: "01234567-89ab-cdef-0123-456789abcdeg" is not a UUID`},
		{"ExecParams", `"metadata":{"threadId":"01234567089ab-cdef-0123-456789abcdef"}`, `UUID parsing failed: "01234567089ab-cdef-0123-456789abcdef" is not a UUID`},
		{"ExecParams", `"metadata":[]`, "invalid type: sequence, expected struct ExecMetadata"},
		{"ExecParams", `"envPolicy":` + policy, ""},
		{"ExecParams", `"envPolicy":{}`, "missing field `inherit`"},
		{"ExecParams", `"envPolicy":` + strings.Replace(policy, "all", "some", 1), "unknown variant `some`, expected one of `core`, `all`, `none`"},
		{"ExecParams", `"envPolicy":` + strings.Replace(policy, "[]", "null", 1), "invalid type: null, expected a sequence"},
		{"ExecParams", `"envPolicy":` + strings.Replace(policy, "true", "1", 1), "invalid type: number, expected a boolean"},

		{"ReadParams", `"afterSeq":null,"maxBytes":null,"waitMs":null`, ""},
		{"ReadParams", `"afterSeq":18446744073709551615,"maxBytes":0,"waitMs":18446744073709551615`, ""},
		{"ReadParams", `"afterSeq":18446744073709551616`, "invalid number"},
		{"ReadParams", `"afterSeq":-1`, "invalid number"},
		{"ReadParams", `"maxBytes":1.5`, "invalid number"},
		{"ReadParams", `"waitMs":1e3`, "invalid number"},
		{"ReadParams", `"waitMs":"1"`, "invalid type: string \"1\", expected u64"},
		{"ReadParams", `"waitMs":false`, "invalid type: boolean, expected u64"},

		{"WriteParams", `"chunk":""`, ""},
		{"WriteParams", `"chunk":"aG\u006b\u003d"`, ""},
		{"WriteParams", `"chunk":"aGk"`, "Invalid padding"},
		{"WriteParams", `"chunk":"!!!!"`, "Invalid symbol 33, offset 0."},
		{"WriteParams", `"chunk":"ab-_"`, "Invalid symbol 45, offset 2."},
		{"WriteParams", `"chunk":"aGk=\n"`, "Invalid symbol 10, offset 4."},
		{"WriteParams", `"chunk":[104]`, "invalid type: sequence, expected a string"},
		{"WriteParams", `"writeId":null`, ""},
		{"WriteParams", `"writeId":"1"`, ""},
		{"WriteParams", `"writeId":""`, "writeId must not be empty"},
		{"WriteParams", `"writeId":1`, "invalid type: number, expected a string"},
		// The chunk is checked before the id of the write.
		{"WriteParams", `"writeId":"","chunk":"a"`, "Invalid padding"},

		{"SignalParams", `"signal":"kill"`, "unknown variant `kill`, expected `interrupt`"},
		{"SignalParams", `"signal":2`, "invalid type: number, expected a string"},

		{"FsParams", `"path":1`, "invalid type: number, expected a string"},
		{"FsParams", `"followSymlinks":null,"sandbox":null`, ""},
		{"FsParams", `"followSymlinks":1`, "invalid type: number, expected a boolean"},

		{"ExecOutputDeltaNotification", `"seq":-1`, "invalid number"},
		{"ExecOutputDeltaNotification", `"seq":18446744073709551615`, ""},
		{"ExecOutputDeltaNotification", `"seq":"1"`, "invalid type: string \"1\", expected u64"},
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
		case test.want != "" && (err == nil || err.Error() != test.want || !errors.Is(err, protocol.ErrInvalidParams)):
			t.Errorf("%s: error %v, want %q", in, err, test.want)
		}
	}
}

// TestNullIsNotEmpty covers members whose absence differs from their zero value.
func TestNullIsNotEmpty(t *testing.T) {
	initialize, err := protocol.DecodeInitialize(raw(`{"clientName":"","resumeSessionId":""}`))
	if err != nil || initialize.ResumeSessionID == nil || *initialize.ResumeSessionID != "" {
		t.Errorf("an empty session id: %+v, %v", initialize, err)
	}
	read, err := protocol.DecodeRead(raw(`{"processId":"","afterSeq":0,"maxBytes":null}`))
	if err != nil || read.AfterSeq == nil || *read.AfterSeq != 0 || read.MaxBytes != nil || read.WaitMs != nil {
		t.Errorf("zero and null: %+v, %v", read, err)
	}
	file, err := protocol.DecodeFile(raw(`{"path":"/","sandboxPolicy":{"a":1}}`))
	if err != nil || !file.FollowSymlinks || string(file.Sandbox) != `{"a":1}` {
		t.Errorf("defaults of a file: %+v, %v", file, err)
	}
	file, err = protocol.DecodeFile(raw(`{"path":"/","followSymlinks":false,"sandbox":[],"sandboxPolicy":1}`))
	if err != nil || file.FollowSymlinks || string(file.Sandbox) != `[]` {
		t.Errorf("members of a file: %+v, %v", file, err)
	}
}

func TestDecodeStartWhole(t *testing.T) {
	in := `{"processId":"1-a","argv":["/bin/bash","-lc","x \u00fc"],"cwd":"file:///w%20d","env":{"TERM":"dumb","\u0041":"\n"},` +
		`"tty":true,"arg0":"","pipeStdin":true,"sandbox":{"a":[1]},"enforceManagedNetwork":true,"managedNetwork":{},"networkProxy":1,` +
		`"envPolicy":{"inherit":"core","ignoreDefaultExcludes":true,"exclude":["A*"],"set":{"B":"C"},"includeOnly":["D"]},` +
		`"metadata":{"threadId":"01234567-89ab-cdef-0123-456789abcdef","toolCallId":""}}`
	source := []byte(in)
	got, err := protocol.DecodeStart(source)
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
	want := protocol.Start{
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

func TestDecodeNoParams(t *testing.T) {
	for _, in := range []string{"", "null", "{}", "{ }"} {
		if err := protocol.DecodeNoParams(raw(in)); err != nil {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, in := range []string{`{"a":1}`, `[]`, `[null]`, `0`, `""`, `false`} {
		if err := protocol.DecodeNoParams(raw(in)); !errors.Is(err, protocol.ErrInvalidParams) {
			t.Errorf("%q: %v", in, err)
		}
	}
}
