package protocol

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// reference returns the methods and the types as tables.
func (doc *document) reference() string {
	r := &reference{document: doc}
	r.line("<!-- make docs writes this file from the Go types of package protocol. -->")
	r.line("# Protocol reference")
	r.line("The tables list the members of every message. [PROTOCOL.md](../PROTOCOL.md) and [EXTENSIONS.md](../EXTENSIONS.md) describe what the messages do. [schema.json](../protocol/schema.json) is the same reference as a JSON Schema, from which tools generate types for other languages.")
	r.line("Receivers ignore members that they do not know. A client uses a method, a member or a notification that needs a capability only if the server announces that capability. A type `string?` means a string or null. An optional member without a value is absent.")
	r.line("## Methods")
	r.methods("request")
	r.line("## Notifications")
	r.methods("notification")
	r.line("## Shared types")
	for _, name := range slices.Sorted(maps.Keys(doc.Definitions)) {
		if r.shared(name) {
			r.definition(name)
		}
	}
	r.line("## Error codes")
	r.table("code", "meaning")
	for _, code := range doc.docs.values["Code"] {
		r.row(code.text, doc.docs.wording(code.comment, nil))
	}
	return r.text.String()
}

type reference struct {
	*document
	text strings.Builder
}

// line adds a paragraph or a heading.
func (r *reference) line(text string) {
	if r.text.Len() > 0 {
		r.text.WriteString("\n")
	}
	r.text.WriteString(text + "\n")
}

func (r *reference) table(columns ...string) {
	r.text.WriteString("\n")
	r.row(columns...)
	r.row(slices.Repeat([]string{"---"}, len(columns))...)
}

func (r *reference) row(cells ...string) {
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	r.text.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func (r *reference) methods(kind string) {
	sender := map[direction]string{toServer: "The client sends it", toClient: "The server sends it", toBoth: "Both sides send it"}
	for _, m := range r.Methods {
		if m.Kind != kind {
			continue
		}
		r.line("### " + m.Method)
		about := m.Description + " " + sender[m.Direction]
		if m.Capability != "" {
			about += "; it needs the capability `" + m.Capability + "`"
		}
		r.line(about + ".")
		if m.Params == nil {
			r.line("It has no params.")
		} else {
			r.value("Params", m.Params, "required")
		}
		if m.Result != nil {
			r.value("Result", m.Result, "always present")
		}
	}
}

// value adds the tables of params or of a result.
func (r *reference) value(title string, ref *schema, required string) {
	name, s := r.resolve(ref)
	_, more, _ := strings.Cut(s.Description, ". ")
	switch {
	case s.AnyOf != nil:
		for i, one := range s.AnyOf {
			name, s := r.resolve(one)
			r.line(fmt.Sprintf("%s, %s form (`%s`). %s", title, []string{"first", "second"}[i], name, s.Description))
			r.members(s, required)
		}
		return
	case len(s.Properties) == 0 && s.AllOf == nil:
		r.line(title + ": `{}`.")
	default:
		r.line(strings.TrimSpace(fmt.Sprintf("%s (`%s`). %s", title, name, more)))
		r.members(s, required)
	}
}

// definition adds the section of a shared type.
func (r *reference) definition(name string) {
	s := r.Definitions[name]
	r.line("### " + name)
	r.line(s.Description)
	switch {
	case s.Enum != nil && !slices.ContainsFunc(r.docs.values[name], func(v value) bool { return v.comment != "" }):
		r.line("One of " + r.typeOf(s) + ".")
	case s.Enum != nil:
		r.table("value", "meaning")
		for _, v := range r.docs.values[name] {
			r.row("`"+v.text+"`", r.docs.wording(v.comment, nil))
		}
	case s.AnyOf != nil:
		r.line("It is " + r.typeOf(s) + ".")
	case s.Properties != nil:
		r.members(s, "required")
	}
}

func (r *reference) members(s *schema, required string) {
	r.table("member", "type", required, "meaning")
	for _, member := range s.Properties {
		meaning := member.schema.Description
		if v := member.schema.Default; v != nil {
			meaning += fmt.Sprintf(" Default: `%v`.", v)
		}
		if older := member.schema.OlderName; older != "" {
			meaning += " Some released clients call it `" + older + "`."
		}
		if member.schema.Binary {
			meaning += " In a binary message, the data takes its place."
		}
		present := "no"
		if slices.Contains(s.Required, member.name) {
			present = "yes"
		}
		r.row("`"+member.name+"`", r.typeOf(member.schema), present, meaning)
	}
	for _, more := range s.AllOf {
		r.line("And the members of " + r.typeOf(more) + ".")
	}
}

// typeOf returns the type of a value in words.
func (r *reference) typeOf(s *schema) string {
	switch {
	case s.Ref != "":
		name, _ := r.resolve(s)
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	case s.AnyOf != nil:
		var kinds []string
		null := ""
		for _, one := range s.AnyOf {
			if one.Type == "null" {
				null = "?"
				continue
			}
			kinds = append(kinds, r.typeOf(one))
		}
		return strings.Join(kinds, " or ") + null
	case s.Enum != nil:
		return "`" + strings.Join(s.Enum, "`, `") + "`"
	case s.ContentEncoding != "":
		return "base64"
	case s.Items != nil:
		return "array of " + r.typeOf(s.Items)
	case s.Values != nil:
		return "object of " + r.typeOf(s.Values)
	case s.Type == "integer" && s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprintf("integer from %d to %d", *s.Minimum, *s.Maximum)
	case s.Type == "integer" && s.Minimum != nil:
		return "unsigned integer"
	case s.Type == "":
		return "any"
	}
	return s.Type
}

func (r *reference) resolve(ref *schema) (string, *schema) {
	name := strings.TrimPrefix(ref.Ref, "#/$defs/")
	return name, r.Definitions[name]
}

// shared reports whether a section of its own describes a type: its tables do not stand with
// a method.
func (r *reference) shared(name string) bool {
	for _, m := range r.Methods {
		for _, ref := range []*schema{m.Params, m.Result} {
			if ref == nil {
				continue
			}
			of, s := r.resolve(ref)
			if of == name && !r.nested(name) || slices.ContainsFunc(s.AnyOf, func(one *schema) bool { return one.Ref == "#/$defs/"+name }) {
				return false
			}
		}
	}
	return true
}

// nested reports whether a member of another type has this type.
func (r *reference) nested(name string) bool {
	for _, s := range r.Definitions {
		for _, member := range s.Properties {
			if strings.Contains(r.typeOf(member.schema), "["+name+"]") {
				return true
			}
		}
	}
	return false
}
