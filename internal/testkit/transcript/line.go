package transcript

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

type kind int

const (
	send      kind = iota // -> text
	expect                // <- message
	closed                // <- closed
	output                // <- output
	then                  // then
	handshake             // handshake
	open                  // open
	closeConn             // close
	drop                  // drop
	mute                  // mute, unmute
	refused               // refused
	file                  // file, directory, link, fifo, mode
	webPage               // page, more, end
)

// Frame says how a client's message goes onto the wire.
type Frame int

const (
	Whole      Frame = iota // as a whole message
	Binary                  // as a binary message
	Fragmented              // as a WebSocket message in fragments of 7 bytes
	Partial                 // as bytes without the end of a line
)

// step is one line of a scenario.
type step struct {
	kind kind
	conn string // a letter, or "" for the only connection
	at   int    // index of the line

	text  string // send: before expansion; expect: JSON; output: the text
	raw   bool   // send: text is not JSON
	data  string // send: of a binary message
	frame Frame  // send
	retry int    // send: again while the answer is this error

	value    any    // expect: text, decoded
	optional bool   // expect: may as well not come
	repeated bool   // expect: may come any number of times
	process  string // output, expect of a notification
	stream   string // output

	code   int      // closed, closeConn, refused; 0: none given
	reason *string  // closed, closeConn, refused
	words  []string // file, webPage
}

var connLine = regexp.MustCompile(`^([A-Z]?)(->|<-|$|\s+[a-z])`)

// parse reads the lines of a scenario.
func (s *Scenario) parse() error {
	for i, line := range s.lines {
		text := strings.TrimSpace(line)
		if reason, ok := strings.CutPrefix(text, "differs: "); ok {
			s.Differs = reason
			continue
		}
		if reason, ok := strings.CutPrefix(text, "sometimes: "); ok {
			s.Differs, s.Maybe = reason, true
			continue
		}
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		st, err := parseLine(text)
		if err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
		st.at = i
		s.steps = append(s.steps, st)
	}
	return nil
}

func parseLine(text string) (step, error) {
	var st step
	if m := connLine.FindStringSubmatch(text); m != nil && m[1] != "" {
		st.conn, text = m[1], strings.TrimSpace(text[1:])
	}
	if rest, ok := strings.CutPrefix(text, "->"); ok {
		return parseSend(st, strings.TrimSpace(rest))
	}
	if rest, ok := strings.CutPrefix(text, "<-"); ok {
		return parseExpect(st, strings.TrimSpace(rest))
	}
	word, rest, _ := strings.Cut(text, " ")
	var err error
	switch word {
	case "then":
		st.kind = then
	case "handshake":
		st.kind = handshake
	case "open":
		st.kind = open
	case "drop":
		st.kind = drop
	case "mute", "unmute":
		st.kind, st.words = mute, []string{word}
	case "close":
		st.kind = closeConn
		err = st.parseReason(rest)
	case "refused":
		st.kind = refused
		err = st.parseReason(rest)
	case "file", "directory", "link", "fifo", "mode":
		st.kind = file
		st.words, err = fileWords(word, rest)
	case "page", "more", "end":
		st.kind = webPage
		st.words, err = fileWords(word, rest)
	default:
		err = fmt.Errorf("cannot understand %q", text)
	}
	return st, err
}

// fileWords splits the operands of a line about a file: its path, which is quoted if it
// holds a space, and an argument.
func fileWords(word, rest string) ([]string, error) {
	path, argument, _ := strings.Cut(rest, " ")
	if quoted, err := strconv.QuotedPrefix(rest); err == nil {
		if path, err = strconv.Unquote(quoted); err != nil {
			return nil, err
		}
		argument = strings.TrimSpace(rest[len(quoted):])
	}
	if path == "" {
		return nil, errors.New("no path")
	}
	return []string{word, path, argument}, nil
}

func parseSend(st step, rest string) (step, error) {
	st.kind, st.text = send, rest
	if after, ok := strings.CutPrefix(rest, "retry "); ok {
		code, text, _ := strings.Cut(after, " ")
		n, err := strconv.Atoi(code)
		if err != nil {
			return st, fmt.Errorf("retry needs an error code: %w", err)
		}
		st.retry, st.text = n, text
		return st, nil
	}
	word, literal, _ := strings.Cut(rest, " ")
	if word == "data" {
		st.frame = Binary
		var err error
		st.data, st.text, err = parseData(literal)
		return st, err
	}
	frames := map[string]Frame{"raw": Whole, "binary": Binary, "fragmented": Fragmented, "partial": Partial}
	frame, ok := frames[word]
	if !ok {
		return st, nil
	}
	text, err := strconv.Unquote(literal)
	if err != nil {
		return st, fmt.Errorf("%s needs a quoted text: %w", word, err)
	}
	st.raw, st.frame, st.text = true, frame, text
	return st, nil
}

func parseExpect(st step, rest string) (step, error) {
	if after, ok := strings.CutPrefix(rest, "?"); ok {
		st.optional, rest = true, strings.TrimSpace(after)
	} else if after, ok := strings.CutPrefix(rest, "*"); ok {
		st.optional, st.repeated, rest = true, true, strings.TrimSpace(after)
	}
	if after, ok := strings.CutPrefix(rest, "closed"); ok {
		st.kind = closed
		return st, st.parseReason(strings.TrimSpace(after))
	}
	if after, ok := strings.CutPrefix(rest, "output "); ok {
		st.kind = output
		parts := strings.SplitN(after, " ", 3)
		if len(parts) < 3 {
			return st, errors.New(`output needs a process, a stream and a "text"`)
		}
		st.process, st.stream = parts[0], parts[1]
		return st, json.Unmarshal([]byte(parts[2]), &st.text)
	}
	after, bulk := strings.CutPrefix(rest, "data ")
	data := ""
	if bulk {
		var err error
		if data, rest, err = parseData(after); err != nil {
			return st, err
		}
	}
	st.kind, st.text = expect, rest
	v, err := decode([]byte(rest))
	if err != nil {
		return st, fmt.Errorf("not JSON: %w", err)
	}
	message, ok := v.(map[string]any)
	if !ok {
		return st, errors.New("not an object")
	}
	if bulk {
		message[dataMember] = data
	}
	st.value = message
	st.process = processOf(message)
	return st, nil
}

func (st *step) parseReason(text string) error {
	if text == "" {
		return nil
	}
	code, literal, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(code)
	if err != nil {
		return fmt.Errorf("not a code: %w", err)
	}
	st.code = n
	if literal == "" {
		return nil
	}
	reason, err := strconv.Unquote(literal)
	st.reason = &reason
	return err
}

// processOf returns the id of the process in the params of a notification, or "".
func processOf(message map[string]any) string {
	if _, reply := message["id"]; reply {
		return ""
	}
	params, _ := message["params"].(map[string]any)
	id, _ := params["processId"].(string)
	return id
}
