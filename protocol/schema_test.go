package protocol

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite schema.json and docs/protocol-reference.md")

// TestSchema compares schema.json and the reference with the types. -update rewrites both.
func TestSchema(t *testing.T) {
	doc, errs := newDocument()
	for _, err := range errs {
		t.Error(err)
	}
	if doc == nil {
		return
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(doc); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]byte{"schema.json": b.Bytes(), "../docs/protocol-reference.md": []byte(doc.reference())} {
		got, err := os.ReadFile(path)
		switch {
		case *update:
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		case err != nil:
			t.Error(err)
		case !bytes.Equal(got, want):
			t.Errorf("%s differs from the types of this package; run make docs", path)
		}
	}
}

// TestMethods looks for methods and notifications that the table does not have, and for
// capabilities that no server announces.
func TestMethods(t *testing.T) {
	docs, err := parseDocs()
	if err != nil {
		t.Fatal(err)
	}
	listed, announced := make(map[string]bool), make(map[string]bool)
	for field := range reflect.TypeFor[Capabilities]().Fields() {
		wire, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		announced[wire] = true
	}
	for _, m := range methods {
		if listed[m.name] {
			t.Errorf("the table has %s twice", m.name)
		}
		listed[m.name] = true
		if m.capability != "" && !announced[m.capability] {
			t.Errorf("%s needs the capability %s, which does not exist", m.name, m.capability)
		}
	}
	for name, literal := range docs.constants {
		if wire, err := strconv.Unquote(literal); err == nil && !listed[wire] &&
			(strings.HasPrefix(name, "Method") || strings.HasPrefix(name, "Notification")) {
			t.Errorf("the table does not have %s, %s", name, wire)
		}
	}
}
