package transcript

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// Message is a line of a scenario that stands for a message, or for the end of a connection.
type Message struct {
	Line   int    // in the scenario, from 1
	Conn   string // a letter, or "" for the only connection
	Client bool   // the client sends it
	Ends   bool   // the connection ends, and no answer comes any more
	Repeat bool   // it comes any number of times, or not at all

	// Value is the message. It is nil if the text is not JSON. Strings such as "$any" and "$name"
	// stand for values that only a run knows. Data is that of a binary message.
	Value any
	Data  *string
}

// Messages returns the messages of both sides in the order of the lines. Running the scenario
// is not necessary.
func (s *Scenario) Messages() []Message {
	var all []Message
	for _, st := range s.steps {
		m := Message{Line: st.at + 1, Conn: st.conn, Client: st.kind == send, Repeat: st.optional}
		switch st.kind {
		case send:
			text := repeat.ReplaceAllStringFunc(st.text, func(s string) string {
				s, _ = variables{}.expand(s) // the message is not JSON then
				return s
			})
			if st.frame == Binary && st.raw {
				if head, data, err := splitData([]byte(text)); err == nil {
					text, st.data = string(head), string(data)
				}
			}
			if st.frame == Binary {
				m.Data = &st.data
			}
			if v, err := decode([]byte(text)); err == nil && st.frame != Partial {
				m.Value = known(v)
			}
		case expect:
			v := st.value.(map[string]any)
			if data, ok := v[dataMember].(string); ok {
				m.Data = &data
			}
			m.Value = known(v)
		case output:
			m.Value = map[string]any{"method": "process/output", "params": map[string]any{
				"processId": st.process, "seq": json.Number("1"), "stream": st.stream,
				"chunk": base64.StdEncoding.EncodeToString([]byte(st.text)),
			}}
		case drop, closed:
			m.Ends = true
		default:
			continue
		}
		all = append(all, m)
	}
	return all
}

// known replaces the strings that stand for one value, or for a value of one type.
func known(v any) any {
	switch v := v.(type) {
	case map[string]any:
		copied := make(map[string]any, len(v))
		for name, member := range v {
			if name != dataMember {
				copied[name] = known(member)
			}
		}
		return copied
	case []any:
		copied := make([]any, len(v))
		for i, item := range v {
			copied[i] = known(item)
		}
		return copied
	case string:
		switch {
		case v == "$int":
			return json.Number("1")
		case v == "$string":
			return "text"
		case strings.HasPrefix(v, "$text(") || strings.HasPrefix(v, "$hex("):
			return base64.StdEncoding.EncodeToString([]byte(v))
		}
	}
	return v
}
