package transcript

import (
	"strings"
	"testing"
	"time"
)

// scripted is a server that answers every message with the same lines.
type scripted struct{ lines []string }

func (s scripted) Connect() (Conn, error) {
	return &scriptedConn{lines: s.lines, out: make(chan string, 64), gone: make(chan struct{})}, nil
}

type scriptedConn struct {
	lines []string
	out   chan string
	gone  chan struct{}
}

func (c *scriptedConn) Send(_ Frame, message []byte) error {
	if strings.Contains(string(message), `"end"`) {
		c.out <- `{"error":{"code":-32601,"message":"no"},"id":"end"}`
		return nil
	}
	for _, line := range c.lines {
		c.out <- line
	}
	return nil
}

func (c *scriptedConn) Receive() ([]byte, error) {
	select {
	case line := <-c.out:
		return []byte(line), nil
	case <-c.gone:
		return nil, &EndedError{}
	}
}

func (c *scriptedConn) End(int, string) error { return nil }
func (c *scriptedConn) Drop()                 { close(c.gone) }

func TestRunIsStrict(t *testing.T) {
	const (
		request   = `-> {"id":1,"method":"m"}`
		reply     = `{"id":1,"result":{"a":1,"b":["x"]}}`
		one       = `{"method":"process/output","params":{"processId":"p","seq":1,"stream":"stdout","chunk":"aGk="}}`
		two       = `{"method":"process/closed","params":{"processId":"p","seq":2}}`
		three     = `{"method":"process/closed","params":{"processId":"p","seq":3}}`
		anyOutput = `{"method":"process/output","params":{"processId":"p","seq":"$int","stream":"stdout","chunk":"$string"}}`
	)
	tests := []struct {
		name     string
		server   []string
		scenario []string
		want     string // in the error; "" is success
	}{
		{"as expected", []string{reply}, []string{request, `<- {"result":{"b":["x"],"a":1},"id":1}`}, ""},
		{"wildcards", []string{reply}, []string{request, `<- {"id":1,"result":{"a":"$int","b":["$string"]}}`}, ""},
		{"captures", []string{reply}, []string{request, `<- {"id":1,"result":{"a":"$v","b":"$any"}}`, request, `<- {"id":1,"result":{"a":"$v","b":["${*}"]}}`}, ""},
		{"another value", []string{reply}, []string{request, `<- {"id":1,"result":{"a":2,"b":["x"]}}`}, ".result.a: got 1, want 2"},
		{"a member too many", []string{reply}, []string{request, `<- {"id":1,"result":{"a":1}}`}, `member "b" is too many`},
		{"a member missing", []string{reply}, []string{request, `<- {"id":1,"result":{"a":1,"b":["x"],"c":1}}`}, `member "c" is missing`},
		{"an element too many", []string{reply}, []string{request, `<- {"id":1,"result":{"a":1,"b":[]}}`}, "want 0 elements"},
		{"a message too many", []string{reply, `{"method":"n"}`}, []string{request, `<- ` + reply}, "nothing like it"},
		{"an answer twice", []string{reply, reply}, []string{request, `<- ` + reply}, "nothing like it"},
		{"a message missing", nil, []string{request, `<- ` + reply}, "did not come"},
		{"an answer not mentioned", nil, []string{request}, "does not mention the answer"},
		{"replies and events interleave", []string{one, reply, two}, []string{request, `<- ` + reply, `<- ` + one, `<- ` + two}, ""},
		{"events out of order", []string{reply, one, two}, []string{request, `<- ` + reply, `<- ` + two, `<- ` + one}, "process/output"},
		{"a gap", []string{reply, one, three}, []string{request, `<- ` + reply, `<- ` + one, `<- ` + three}, "event 3 follows event 1"},
		{"an event before then", []string{one, reply}, []string{request, `<- ` + reply, `then`, `<- ` + one}, "nothing like it"},
		{"output in text", []string{reply, one}, []string{request, `<- ` + reply, `<- output p stdout "hi"`}, ""},
		{"other output", []string{reply, one}, []string{request, `<- ` + reply, `<- output p stdout "ho"`}, `got "hi"`},
		{"optional, absent", []string{reply, one}, []string{request, `<- ` + reply, `<- ` + one, `<- ? ` + two}, ""},
		{"any number, none", []string{reply, one}, []string{request, `<- ` + reply, `<- * ` + two, `<- ` + one}, ""},
		{"any number, two", []string{reply, one, strings.Replace(one, ":1,", ":2,", 1), three}, []string{request, `<- ` + reply, `<- * ` + anyOutput, `<- ` + three}, ""},
		{"any number of others", []string{reply, one, two, three}, []string{request, `<- ` + reply, `<- * ` + anyOutput, `<- ` + three}, "after line"},
		{"base64 as text", []string{reply, one}, []string{request, `<- ` + reply, `<- ` + strings.Replace(one, "aGk=", "$text(hi)", 1)}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := Parse([]byte("-- s --\n" + strings.Join(tt.scenario, "\n") + "\n"))
			if err != nil {
				t.Fatal(err)
			}
			timeout := 10 * time.Second
			if strings.Contains(tt.want, "did not come") {
				timeout = time.Millisecond
			}
			err = f.Scenarios[0].Run(scripted{tt.server}, Options{Dir: t.TempDir(), Timeout: timeout})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("Run: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("Run: %v, want an error with %q", err, tt.want)
			}
		})
	}
}
