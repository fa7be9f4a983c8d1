package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// schema is the part of JSON Schema that describes the types of this package.
type schema struct {
	Ref             string     `json:"$ref,omitempty"`
	Description     string     `json:"description,omitempty"`
	Type            string     `json:"type,omitempty"`
	Enum            []string   `json:"enum,omitempty"`
	ContentEncoding string     `json:"contentEncoding,omitempty"`
	MaxLength       int        `json:"maxLength,omitempty"`
	Minimum         *int64     `json:"minimum,omitempty"`
	Maximum         *int64     `json:"maximum,omitempty"`
	Default         any        `json:"default,omitempty"`
	OlderName       string     `json:"x-older-name,omitempty"` // that released clients send
	Binary          bool       `json:"x-binary,omitempty"`     // the data of a binary message takes its place
	Items           *schema    `json:"items,omitempty"`
	Values          *schema    `json:"additionalProperties,omitempty"`
	AllOf           []*schema  `json:"allOf,omitempty"`
	AnyOf           []*schema  `json:"anyOf,omitempty"`
	Properties      properties `json:"properties,omitempty"`
	Required        []string   `json:"required,omitempty"`
}

// properties are the members of an object in the order of the fields.
type properties []property

type property struct {
	name   string
	schema *schema
}

func (p properties) get(name string) *schema {
	for _, member := range p {
		if member.name == name {
			return member.schema
		}
	}
	return nil
}

func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, member := range p {
		text, err := json.Marshal(member.schema)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%s", member.name, text)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// definitions are the schemas of the types, by their names.
type definitions struct {
	byName map[string]*schema
	docs   *docs
	errors []error
}

// define returns a reference to the schema of a type. received says that the server decodes
// the type: the tag wire then decides which members a client must send. Otherwise the server
// encodes it.
func (d *definitions) define(t reflect.Type, received bool) *schema {
	name := definitionName(t)
	ref := &schema{Ref: "#/$defs/" + name}
	if d.byName[name] != nil {
		return ref
	}
	s := new(schema)
	d.byName[name] = s
	switch r := rules[t]; {
	case r.union != nil:
		for _, one := range r.union {
			s.AnyOf = append(s.AnyOf, d.define(one, received))
		}
	case r.members != nil:
		s.Type = "object"
		d.members(s, r.members, received, false)
	case r.schema.Type != "" || r.schema.AnyOf != nil:
		*s = r.schema
	case t.Kind() == reflect.String:
		s.Type = "string"
		for _, value := range d.docs.values[t.Name()] {
			s.Enum = append(s.Enum, value.text)
		}
	default:
		s.Type = "object"
		d.members(s, t, received, false)
	}
	s.Description = d.docs.ofType(t)
	if s.Description == "" {
		d.errors = append(d.errors, fmt.Errorf("the type %s has no comment", t.Name()))
	}
	return ref
}

// definitionName returns the name of a type in the schema.
func definitionName(t reflect.Type) string {
	if name, ok := names[t]; ok {
		return name
	}
	first := []rune(t.Name())
	first[0] = unicode.ToUpper(first[0])
	return string(first)
}

// members adds the members of a struct, and of those that it embeds. optional says that the
// server leaves all of them out at times.
func (d *definitions) members(s *schema, t reflect.Type, received, optional bool) {
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous {
			embedded := field.Type
			pointer := embedded.Kind() == reflect.Pointer
			if pointer {
				embedded = embedded.Elem()
			}
			if embedded == reflect.TypeFor[exitMembers]() {
				s.AllOf = append(s.AllOf, d.define(reflect.TypeFor[ExitRecord](), received))
				continue
			}
			d.members(s, embedded, received, optional || pointer && !strings.HasPrefix(embedded.Name(), "plain"))
			continue
		}
		if name == "" || name == "-" || s.Properties.get(name) != nil || t == reflect.TypeFor[ExitRecord]() && name == "sandboxDenied" {
			continue
		}
		member, required, null := d.member(field, name, options, received)
		exception := exceptions[t.Name()+"."+name]
		if required && !optional && !exception.optional {
			s.Required = append(s.Required, name)
		}
		if null || exception.null {
			member = &schema{AnyOf: []*schema{member, {Type: "null"}}, Default: member.Default, OlderName: member.OlderName}
			member.AnyOf[0].Default, member.AnyOf[0].OlderName = nil, ""
		}
		member.Description = d.docs.ofField(t, field)
		if member.Description == "" {
			d.errors = append(d.errors, fmt.Errorf("the field %s.%s has no comment", t.Name(), field.Name))
		}
		s.Properties = append(s.Properties, property{name, member})
	}
	if _, ok := reflect.New(t).Interface().(interface{ join([]byte) }); ok {
		for _, member := range s.Properties {
			member.schema.Binary = member.schema.ContentEncoding != ""
		}
	}
}

// member returns the schema of a field without its description.
func (d *definitions) member(field reflect.StructField, name, options string, received bool) (s *schema, required, null bool) {
	s = d.value(field.Type, name, received)
	if !received {
		omitted := strings.HasPrefix(options, "omit")
		return s, !omitted, !omitted && field.Type.Kind() == reflect.Pointer
	}
	tag := field.Tag.Get("wire")
	if tag == "-" {
		tag = "absent=false"
		if field.Type.Kind() == reflect.Pointer {
			tag = ""
		}
	}
	w := newWireField(field, name, tag)
	if w.identifier {
		s.MaxLength = MaxIdentifierBytes
	}
	if s.Ref == "" {
		s.Enum = append(s.Enum, w.enum...)
	}
	s.OlderName = w.older
	switch {
	case w.required:
	case field.Type.Kind() == reflect.Bool:
		s.Default = w.absent == "true"
	case w.absent != "":
		s.Default = w.absent
	}
	return s, w.required, w.null
}

// value returns the schema of the values of a type. name is the name of the member.
func (d *definitions) value(t reflect.Type, name string, received bool) *schema {
	if r, ok := rules[t]; ok && inline[t] {
		if r.union != nil {
			s := new(schema)
			for _, one := range r.union {
				s.AnyOf = append(s.AnyOf, d.define(one, received))
			}
			return s
		}
		return new(r.schema)
	} else if ok {
		return d.define(t, received)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.value(t.Elem(), name, received)
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return &schema{Type: "integer"}
	case reflect.Uint32, reflect.Uint64:
		return &schema{Type: "integer", Minimum: new(int64)}
	case reflect.Float64:
		return &schema{Type: "number"}
	case reflect.Map:
		return &schema{Type: "object", Values: d.value(t.Elem(), name, received)}
	case reflect.String:
		if d.docs.values[t.Name()] != nil {
			return d.define(t, received)
		}
		return &schema{Type: "string"}
	case reflect.Struct:
		return d.define(t, received)
	case reflect.Slice:
		if t != reflect.TypeFor[json.RawMessage]() {
			return &schema{Type: "array", Items: d.value(t.Elem(), name, received)}
		}
		of, ok := raw[name]
		if !ok {
			d.errors = append(d.errors, fmt.Errorf("nothing says what the member %s is", name))
		}
		if of == nil {
			return new(schema)
		}
		return d.define(of, received)
	}
	panic("no schema for " + t.String())
}

// document is the whole schema.
type document struct {
	Schema      string             `json:"$schema"`
	Comment     string             `json:"$comment"`
	Title       string             `json:"title"`
	Description string             `json:"description"`
	Type        string             `json:"type"`
	Properties  properties         `json:"properties"`
	Required    []string           `json:"required"`
	Methods     []describedMethod  `json:"x-methods"`
	Definitions map[string]*schema `json:"$defs"`

	docs *docs
}

type describedMethod struct {
	Method      string    `json:"method"`
	Kind        string    `json:"kind"` // request or notification
	Direction   direction `json:"direction"`
	Capability  string    `json:"capability,omitempty"`
	Description string    `json:"description"`
	Params      *schema   `json:"params,omitempty"` // absent: none
	Result      *schema   `json:"result,omitempty"`
}

// newDocument makes the schema from the types and their comments.
func newDocument() (*document, []error) {
	docs, err := parseDocs()
	if err != nil {
		return nil, []error{err}
	}
	d := &definitions{byName: make(map[string]*schema), docs: docs}
	doc := &document{
		Schema:      "https://json-schema.org/draft/2020-12/schema",
		Comment:     "Generated from the Go types of package protocol by make docs.",
		Title:       "The exec-server protocol",
		Description: "The types of the protocol, and the params and the result of each method. No message looks like this object: it names all types, so that tools generate them. x-methods lists the methods with their directions. PROTOCOL.md and EXTENSIONS.md describe what the messages do. Receivers must ignore unknown members.",
		Type:        "object",
		Definitions: d.byName,
		docs:        docs,
	}
	// What clients send comes first: a type that both sides send has the members that the
	// server accepts.
	for _, m := range methods {
		if m.params != nil && m.direction != toClient {
			d.define(m.params, true)
		}
	}
	for _, m := range methods {
		described := describedMethod{Method: m.name, Kind: "notification", Direction: m.direction, Capability: m.capability, Description: m.text}
		if m.params != nil {
			described.Params = d.define(m.params, m.direction != toClient)
		}
		if m.result != nil {
			described.Kind, described.Result = "request", d.define(m.result, false)
		}
		doc.Methods = append(doc.Methods, described)
	}
	slices.SortStableFunc(doc.Methods, func(a, b describedMethod) int { return -strings.Compare(a.Kind, b.Kind) })
	message := &schema{Description: "A message.", AnyOf: []*schema{
		d.define(reflect.TypeFor[wireRequest](), true), d.define(reflect.TypeFor[wireNotification](), true),
		d.define(reflect.TypeFor[wireResponse](), false), d.define(reflect.TypeFor[wireFailure](), false),
	}}
	doc.Properties = properties{
		{"message", message},
		{"requests", doc.kind("request", "The requests by their methods.")},
		{"notifications", doc.kind("notification", "The notifications by their methods.")},
		{"fileChanged", d.define(reflect.TypeFor[FileChanged](), false)},
	}
	for _, member := range doc.Properties {
		doc.Required = append(doc.Required, member.name)
	}
	return doc, d.errors
}

// kind returns an object with a member for each request or for each notification.
func (doc *document) kind(kind, description string) *schema {
	all := &schema{Description: description, Type: "object"}
	for _, m := range doc.Methods {
		if m.Kind != kind {
			continue
		}
		one := &schema{Description: m.Description, Type: "object"}
		if m.Params != nil {
			one.Properties = append(one.Properties, property{"params", m.Params})
		}
		if m.Result != nil {
			one.Properties = append(one.Properties, property{"result", m.Result})
		}
		for _, member := range one.Properties {
			one.Required = append(one.Required, member.name)
		}
		all.Properties = append(all.Properties, property{m.Method, one})
		all.Required = append(all.Required, m.Method)
	}
	return all
}
