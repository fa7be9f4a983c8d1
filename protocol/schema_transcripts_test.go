package protocol

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"execserver/internal/testkit/transcript"
)

// TestTranscriptsFitSchema checks every message of every transcript against schema.json. A
// request or a notification whose answer is an error may be wrong on purpose.
func TestTranscriptsFitSchema(t *testing.T) {
	v := newValidator(t)
	files, err := transcript.ParseDir(filepath.Join("..", "transcripts"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, f := range files {
		for _, s := range f.Scenarios {
			c := conversation{validator: v, open: make(map[string][]*sent), report: func(line int, err error) {
				t.Errorf("%s, %s, line %d: %v", f.Path, s.Name, line, err)
			}}
			for _, m := range s.Messages() {
				c.message(m)
			}
			for conn := range c.open {
				c.end(conn)
			}
			checked += c.checked
		}
	}
	if checked == 0 {
		t.Error("no transcript has a message")
	}
	t.Logf("%d params and results", checked)
}

// validator checks values against the definitions of schema.json.
type validator struct {
	methods     map[string]describedMethod
	definitions map[string]any
	schema      *jsonschema.Resolved
}

func newValidator(t *testing.T) *validator {
	t.Helper()
	text, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Methods     []describedMethod `json:"x-methods"`
		Definitions map[string]any    `json:"$defs"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	v := &validator{methods: make(map[string]describedMethod), definitions: doc.Definitions}
	for _, m := range doc.Methods {
		v.methods[m.Method] = m
	}
	// One schema for all: an object that has a member for each definition.
	definitions, members := make(map[string]any), make(map[string]any)
	for name, s := range doc.Definitions {
		definitions[name] = strict(s, name != "ExitRecord") // which others include
		members[name] = map[string]any{"$ref": "#/$defs/" + name}
	}
	text, err = json.Marshal(map[string]any{"$defs": definitions, "properties": members})
	if err != nil {
		t.Fatal(err)
	}
	s := new(jsonschema.Schema)
	if err := json.Unmarshal(text, s); err != nil {
		t.Fatal(err)
	}
	if v.schema, err = s.Resolve(nil); err != nil {
		t.Fatal(err)
	}
	return v
}

// check checks a value against a definition.
func (v *validator) check(ref *schema, value any) error {
	text, err := json.Marshal(map[string]any{strings.TrimPrefix(ref.Ref, "#/$defs/"): value})
	if err != nil {
		return err
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return err
	}
	return v.schema.Validate(plain)
}

// strict returns a schema that refuses members it does not name, if closed is true. It accepts
// the names of values that only a run of the transcript knows.
func strict(s any, closed bool) any {
	switch s := s.(type) {
	case map[string]any:
		copied := maps.Clone(s)
		for name, inner := range s {
			switch name {
			case "properties":
				members := make(map[string]any)
				for member, of := range inner.(map[string]any) {
					members[member] = orName(strict(of, closed))
				}
				copied[name] = members
			case "items", "additionalProperties":
				copied[name] = orName(strict(inner, closed))
			case "anyOf":
				copied[name] = strict(inner, closed)
			}
		}
		switch {
		case !closed || s["properties"] == nil:
		case s["allOf"] != nil:
			copied["unevaluatedProperties"] = false
		default:
			copied["additionalProperties"] = false
		}
		if closed {
			copied["patternProperties"] = map[string]any{"^unknown$": true} // sent to see that it is ignored
		}
		return copied
	case []any:
		copied := make([]any, len(s))
		for i, item := range s {
			copied[i] = strict(item, closed)
		}
		return copied
	}
	return s
}

func orName(s any) any {
	return map[string]any{"anyOf": []any{s, map[string]any{"type": "string", "pattern": `^\$[a-z][A-Za-z0-9]*$`}}}
}

// conversation follows one scenario.
type conversation struct {
	*validator
	open    map[string][]*sent // requests and notifications without an error so far, by connection
	report  func(line int, err error)
	checked int
}

// sent is a message of the client.
type sent struct {
	line  int
	id    any
	value map[string]any
	data  *string
}

func (c *conversation) message(m transcript.Message) {
	value, _ := m.Value.(map[string]any)
	switch {
	case m.Ends:
		c.end(m.Conn)
	case m.Client:
		c.open[m.Conn] = append(c.open[m.Conn], &sent{m.Line, value["id"], value, m.Data})
	case value["error"] != nil:
		c.answered(m.Conn, value["id"])
		c.fits(m.Line, &schema{Ref: "#/$defs/ErrorResponse"}, value)
	case value["result"] != nil:
		c.result(m, value)
	default:
		described, ok := c.methods[value["method"].(string)]
		if !ok || described.Kind != "notification" || described.Direction == toServer {
			c.report(m.Line, fmt.Errorf("the schema has no notification %v to the client", value["method"]))
			return
		}
		c.params(m.Line, described, value, m.Data)
	}
}

// answered removes the message that an answer is for, and returns it.
func (c *conversation) answered(conn string, id any) *sent {
	open := c.open[conn]
	last := -1
	for i, m := range open {
		if fmt.Sprint(m.id) == fmt.Sprint(id) {
			last = i
			break
		}
	}
	if last < 0 && fmt.Sprint(id) == "-1" {
		last = len(open) - 1
	}
	if last < 0 {
		return nil
	}
	m := open[last]
	c.open[conn] = append(open[:last:last], open[last+1:]...)
	return m
}

// unknown reports whether the client has sent something that is not JSON, such as a compressed
// message.
func (c *conversation) unknown(conn string) bool {
	return slices.ContainsFunc(c.open[conn], func(m *sent) bool { return m.value == nil })
}

func (c *conversation) result(m transcript.Message, value map[string]any) {
	request := c.answered(m.Conn, value["id"])
	if request == nil {
		if !m.Repeat && !c.unknown(m.Conn) {
			c.report(m.Line, fmt.Errorf("no request has the id %v", value["id"]))
		}
		return
	}
	described, ok := c.methods[fmt.Sprint(request.value["method"])]
	if !ok || described.Result == nil {
		c.report(m.Line, fmt.Errorf("the schema has no method %v", request.value["method"]))
		return
	}
	c.params(request.line, described, request.value, request.data)
	result := value["result"]
	if members, ok := result.(map[string]any); ok {
		result = c.join(described.Result, members, m.Data)
	}
	if name, ok := result.(string); !ok || !strings.HasPrefix(name, "$") {
		c.fits(m.Line, described.Result, result)
	}
}

// end checks what a connection has sent without an answer.
func (c *conversation) end(conn string) {
	for _, m := range c.open[conn] {
		described, ok := c.methods[fmt.Sprint(m.value["method"])]
		if ok {
			c.params(m.line, described, m.value, m.data)
		}
	}
	delete(c.open, conn)
}

func (c *conversation) params(line int, described describedMethod, value map[string]any, data *string) {
	params := value["params"]
	members, isObject := params.(map[string]any)
	switch {
	case described.Params == nil && params != nil && len(members) > 0:
		c.report(line, fmt.Errorf("the schema has no params of %s", described.Method))
	case described.Params == nil, described.Method == MethodList && params == nil:
	case !isObject:
		c.report(line, fmt.Errorf("the params of %s are not an object", described.Method))
	default:
		c.fits(line, described.Params, c.join(described.Params, members, data))
	}
}

// join returns an object of a binary message with its data, and with the members that released
// clients send under an older name.
func (c *conversation) join(ref *schema, members map[string]any, data *string) map[string]any {
	joined := maps.Clone(members)
	definition := c.definitions[strings.TrimPrefix(ref.Ref, "#/$defs/")].(map[string]any)
	properties, _ := definition["properties"].(map[string]any)
	for name, s := range properties {
		member := s.(map[string]any)
		if data != nil && member["x-binary"] == true {
			joined[name] = base64.StdEncoding.EncodeToString([]byte(*data))
		}
		if older, ok := member["x-older-name"].(string); ok && joined[older] != nil {
			joined[name] = joined[older]
			delete(joined, older)
		}
	}
	return joined
}

func (c *conversation) fits(line int, ref *schema, value any) {
	c.checked++
	if err := c.check(ref, value); err != nil {
		c.report(line, err)
	}
}
