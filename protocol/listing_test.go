package protocol_test

import (
	"math"
	"strings"
	"testing"

	"execserver/protocol"
)

// names are file names that are hard to spell.
var names = append([]string{"a b", "\xff\xfe", "ü\xff", strings.Repeat("<\x01", 100), "\u2028", "%41"}, texts...)

func TestAppendListings(t *testing.T) {
	id := protocol.NumberID(1)
	var directory protocol.ReadDirectoryResult
	var walk protocol.WalkResult
	check := func() {
		t.Helper()
		got, err := protocol.AppendResponse(nil, id, directory)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, object{"id": 1, "result": directory})
		got, err = protocol.AppendResponse(nil, id, walk)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, object{"id": 1, "result": walk})
	}
	directory.Entries, walk.Entries, walk.Errors = []protocol.DirectoryEntry{}, []protocol.WalkEntry{}, []protocol.WalkError{}
	check()
	for i, name := range names {
		if strings.IndexByte(name, 0) >= 0 {
			continue // no file has such a name
		}
		path := protocol.URIPath("/d/" + name)
		entry := protocol.DirectoryEntry{FileName: name, IsDirectory: i%2 == 0, IsFile: i%3 == 0}
		if i%2 == 0 {
			entry.Path = &path
		}
		if i%3 > 0 {
			entry.EntryDetails = &protocol.EntryDetails{
				Kind: protocol.KindBlockDevice, Mode: 0o7777, Size: math.MaxInt64, ModifiedAtMs: math.MaxInt64, ModifiedNs: 999999,
			}
		}
		if i%3 == 2 {
			entry.LinkTarget = protocol.NewLinkTarget(name)
		}
		whole := protocol.ReadDirectoryResult{Entries: []protocol.DirectoryEntry{entry}}
		if text := whole.AppendJSON(nil); entry.EncodedLen() < len(text)-len(`{"entries":[]}`) {
			t.Errorf("the length of %s is told as %d", text, entry.EncodedLen())
		}
		if got := strings.Count(string(whole.AppendJSON(nil)), `":`); entry.Values() != got {
			t.Errorf("%q: %d values, want %d", name, entry.Values(), got)
		}
		directory.Entries = append(directory.Entries, entry)
		walk.Entries = append(walk.Entries, protocol.WalkEntry{Path: protocol.OSPath("/d/" + name), Kind: protocol.WalkFile})
		walk.Errors = append(walk.Errors, protocol.WalkError{Path: path, Message: name})
		check()
	}
	directory.Truncated, walk.Truncated = true, true
	check()
}

func TestWriteFileData(t *testing.T) {
	for in, want := range map[string]string{
		`"aGk="`:           "hi",
		`""`:               "",
		`"aG\u006b\u003d"`: "hi",
		`"aGk"`:            "invalid params: dataBase64: illegal base64 data at input byte 0",
		`"!!"`:             "invalid params: dataBase64: illegal base64 data at input byte 0",
	} {
		p, err := protocol.DecodeParams[protocol.WriteFileParams](raw(`{"path":"/f","dataBase64":` + in + `}`))
		if err != nil {
			t.Fatal(err)
		}
		data, err := p.DataBase64.Decode()
		if err != nil {
			if e := protocol.AsError(err); e.Code != protocol.CodeInvalidRequest || e.Message != want {
				t.Errorf("%s: %+v", in, e)
			}
		} else if string(data) != want {
			t.Errorf("%s: %q", in, data)
		}
	}
}
