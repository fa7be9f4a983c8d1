package protocol

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// docs are the comments of the package's types, of their fields and of constants.
type docs struct {
	types     map[string]string
	fields    map[string]map[string]string // by type and field
	same      map[string]string            // the type that another one was made of
	values    map[string][]value           // constants by their type
	constants map[string]string            // literals by the names of constants
}

type value struct{ name, text, comment string }

// usual has the meanings of members that many types have, and that need no comment in Go.
var usual = map[string]string{
	"argv":            "The program and its arguments.",
	"argvTruncated":   "The server shortened `argv`.",
	"chunk":           "The data.",
	"closed":          "The process has closed: no more output follows.",
	"code":            "See the error codes.",
	"cols":            "The number of columns.",
	"cursor":          "The cursor.",
	"cwd":             "The working directory.",
	"destinationPath": "The destination.",
	"env":             "The environment.",
	"exited":          "The process has exited.",
	"eof":             "The end has been reached.",
	"followSymlinks":  "Follow symbolic links in the path; otherwise a link is an error.",
	"handleId":        "The handle, chosen by the client.",
	"isDirectory":     "It is a directory.",
	"isFile":          "It is a regular file.",
	"kind":            "The kind.",
	"live":            "The server is still writing it.",
	"metadata":        "The caller's records that the process belongs to.",
	"mode":            "The mode, in the numbers of Unix.",
	"nextSeq":         "The number of the next event.",
	"offset":          "The position of the first byte.",
	"own":             "It belongs to the caller's principal.",
	"path":            "The file or directory.",
	"pid":             "The process's number on the machine.",
	"processId":       "The process.",
	"processes":       "One for each process.",
	"recordingId":     "The recording.",
	"requestId":       "The stream of the response.",
	"rows":            "The number of rows.",
	"running":         "The process has not exited.",
	"sandbox":         "The sandbox to enforce; none by default.",
	"seq":             "The number of the event.",
	"sessionId":       "The session.",
	"sourcePath":      "The source.",
	"state":           "The state.",
	"status":          "The result.",
	"stream":          "`stdout`, `stderr` or `pty`.",
	"streamId":        "The forwarded connection, chosen by the client.",
	"tty":             "The process has a terminal.",
	"watchId":         "The watch, chosen by the client.",
}

// parseDocs reads the package, with the shapes of its schema.
func parseDocs() (*docs, error) {
	d := &docs{make(map[string]string), make(map[string]map[string]string), make(map[string]string), make(map[string][]value), make(map[string]string)}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") && path != "schema_shapes_test.go" {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			if group, ok := decl.(*ast.GenDecl); ok {
				d.group(group)
			}
		}
	}
	return d, nil
}

func (d *docs) group(group *ast.GenDecl) {
	for _, spec := range group.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			d.types[spec.Name.Name] = comment(group.Doc, spec.Doc)
			switch t := spec.Type.(type) {
			case *ast.Ident:
				d.same[spec.Name.Name] = t.Name
			case *ast.StructType:
				fields := make(map[string]string)
				for _, field := range t.Fields.List {
					for _, name := range field.Names {
						fields[name.Name] = comment(field.Doc, field.Comment)
					}
				}
				d.fields[spec.Name.Name] = fields
			}
		case *ast.ValueSpec:
			if group.Tok != token.CONST || len(spec.Values) != 1 {
				continue
			}
			literal := literalOf(spec.Values[0])
			if literal == "" {
				continue
			}
			d.constants[spec.Names[0].Name] = literal
			if t, ok := spec.Type.(*ast.Ident); ok {
				text, err := strconv.Unquote(literal)
				if err != nil {
					text = literal
				}
				d.values[t.Name] = append(d.values[t.Name], value{spec.Names[0].Name, text, comment(spec.Doc, spec.Comment)})
			}
		}
	}
}

// literalOf returns the text of a constant that is a literal, or "".
func literalOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Value
	case *ast.UnaryExpr:
		return e.Op.String() + literalOf(e.X)
	}
	return ""
}

// comment returns the first paragraph of each comment in one line.
func comment(groups ...*ast.CommentGroup) string {
	var texts []string
	for _, group := range groups {
		paragraph, _, _ := strings.Cut(group.Text(), "\n\n")
		if text := strings.Join(strings.Fields(paragraph), " "); text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, " ")
}

// ofType returns the description of a type.
func (d *docs) ofType(t reflect.Type) string {
	text := d.types[t.Name()]
	if rest, ok := strings.CutPrefix(text, t.Name()+" "); ok {
		verb, rest, _ := strings.Cut(rest, " ")
		if verb == "is" || verb == "are" {
			text = rest
		}
	}
	return d.wording(text, t)
}

// ofField returns the description of a field.
func (d *docs) ofField(t reflect.Type, field reflect.StructField) string {
	name := t.Name()
	if same, ok := d.same[name]; ok {
		name = same
	}
	if text := d.wording(d.fields[name][field.Name], t); text != "" {
		return text
	}
	wire, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return usual[wire]
}

var (
	goWord  = regexp.MustCompile(`\b[A-Z][A-Za-z0-9]*(\.[A-Z][A-Za-z0-9]*)?\b`)
	section = regexp.MustCompile(` ?\((?:docs/)?\w+\.md, [^)]*\)`)
)

// forGo replaces what only readers of the Go source need.
var forGo = strings.NewReplacer(
	"; nil ", "; absent ", "nil means", "absent means", `"" means`, "absent means", "a nil ", "an absent ", "Nil members", "Absent members",
	"It is nil ", "It is absent ", " does not have is nil", " does not have is null", "is nil,", "is absent,",
	", for receivers", "", " DecodeParams copies Data.", "", " DecodeParams copies Chunk.", "",
	" IDs are comparable. The zero value is not an id.", "", " Data must not change after the Chunk was made.", "",
	" The content is in Data or in DataBase64; see Content.", "", " The zero Path is null.", "", " MaxRSSBytes is 0 if unknown.", "", `; "" if it can`, "; absent if it can",
	" that contains a resolvedStart", " that is `direct` or `prepared`, exactly one of which is present", "Shell.Path", "that of the shell",
)

// wording makes a description of a Go comment: a sentence, with the names of the wire.
func (d *docs) wording(text string, t reflect.Type) string {
	text = section.ReplaceAllString(text, "")
	text = forGo.Replace(text)
	text = goWord.ReplaceAllStringFunc(text, func(word string) string {
		owner, name, dotted := strings.Cut(word, ".")
		if !dotted && t != nil {
			owner, name = t.Name(), word
		}
		if wire := d.wireName(owner, name, t); wire != "" {
			return "`" + wire + "`"
		}
		if literal, ok := d.constants[word]; ok && strings.IndexFunc(word, unicode.IsLower) > 0 {
			return "`" + strings.Trim(strings.ReplaceAll(literal, "_", ""), `"`) + "`"
		}
		return word
	})
	if text == "" {
		return ""
	}
	// A name stays as it is.
	if word, _, _ := strings.Cut(text, " "); !strings.ContainsAny(word, "/._") {
		first := []rune(text)
		first[0] = unicode.ToUpper(first[0])
		text = string(first)
	}
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// wireName returns the name of a field on the wire, or "".
func (d *docs) wireName(owner, name string, t reflect.Type) string {
	if t == nil || t.Kind() != reflect.Struct || owner != t.Name() {
		return ""
	}
	field, ok := t.FieldByName(name)
	if !ok {
		return ""
	}
	wire, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return strings.Trim(wire, "-")
}
