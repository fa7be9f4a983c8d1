package serve

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "rewrite the table of settings in docs/operations.md")

// reference returns the table of all settings, in the order of the flags.
func reference() string {
	var b strings.Builder
	b.WriteString("| setting | value | default | |\n| --- | --- | --- | --- |\n")
	flags, _ := newFlags(true)
	flags.VisitAll(func(f *pflag.Flag) {
		if !isSetting(f) {
			return
		}
		_, meaning := pflag.UnquoteUsage(f)
		value := map[string]string{
			"bool": "true or false", "duration": "time", "string": "string",
			"stringArray": "array of strings", "uintSlice": "array of numbers",
		}[f.Value.Type()]
		if value == "" {
			value = "number"
		}
		byDefault := ""
		switch {
		case f.DefValue == "" || f.DefValue == "[]" || f.DefValue == "false":
		case value == "number":
			byDefault = "`" + f.DefValue + "`"
		default:
			byDefault = "`\"" + f.DefValue + "\"`"
		}
		meaning = strings.NewReplacer("; may be repeated", "", "|", `\|`).Replace(meaning)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, value, byDefault, meaning)
	})
	return b.String()
}

// TestConfigurationReference compares the table of settings in docs/operations.md with the
// flags. -update rewrites it.
func TestConfigurationReference(t *testing.T) {
	const (
		path  = "../../../docs/operations.md"
		begin = "<!-- settings: make docs rewrites this table -->\n\n"
		end   = "\n<!-- end of the settings -->\n"
	)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, hasBegin := strings.Cut(string(text), begin)
	table, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s lacks %q or %q", path, begin, end)
	}
	want := reference()
	switch {
	case table == want:
	case *update:
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the flags of serve have changed; run make docs, which rewrites the settings in %s to:\n%s", path, want)
	}
}
