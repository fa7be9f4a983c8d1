package transcript

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// await receives messages until they meet all expectations of the block. next is the
// index of the line after the block.
func (r *runner) await(next int) error {
	var broken error
	for {
		timeout, met := r.opts.Timeout, r.allMet()
		if r.opts.Update {
			timeout = updateQuiet
		} else if met {
			break
		}
		timer := time.NewTimer(timeout)
		select {
		case a := <-r.arrivals:
			timer.Stop()
			if err := r.arrive(a); err != nil && broken == nil {
				broken = err
			}
			if broken != nil && !r.opts.Update {
				return broken
			}
			continue
		case <-timer.C:
		}
		if r.opts.Update {
			break
		}
		return r.missing()
	}
	if r.opts.Update && (broken != nil || !r.allMet()) {
		r.rewrite(next)
	}
	r.block, r.stage, r.recorded = nil, 0, nil
	return nil
}

func (r *runner) allMet() bool {
	for _, p := range r.block {
		if !p.met && !p.step.optional {
			return false
		}
	}
	return true
}

func (r *runner) missing() error {
	for _, p := range r.block {
		if !p.met && !p.step.optional {
			return r.fail(p.step.at, "did not come within %s", r.opts.Timeout)
		}
	}
	return nil
}

// arrive handles one message.
func (r *runner) arrive(a arrival) error {
	if a.link.gone {
		return nil
	}
	if a.err != nil {
		return r.ended(a)
	}
	message, err := decodeMessage(a.data)
	if err != nil {
		return fmt.Errorf("connection %q sent %q: %w", a.link.name, a.data, err)
	}
	if r.again(a.link, message) {
		return nil
	}
	rec := recorded{link: a.link, data: a.data, message: message}
	p, err := r.meet(a.link, message)
	a.link.answered(show(message["id"]))
	if message["method"] == "process/closed" {
		a.link.closed[processOf(message)] = true
	}
	if err == nil {
		rec.met = p
	}
	r.recorded = append(r.recorded, rec)
	return err
}

// answered notes an answer. The answer to a message that the server could not decode has
// the id -1.
func (l *link) answered(id string) {
	if _, ok := l.unanswered[id]; !ok && id == "-1" {
		last := -1
		for other, at := range l.unanswered {
			if at > last {
				id, last = other, at
			}
		}
	}
	delete(l.unanswered, id)
}

// again sends a request again if its answer is the error to retry on.
func (r *runner) again(l *link, message map[string]any) bool {
	failure, ok := message["error"].(map[string]any)
	if l.retry == nil || !ok || show(message["id"]) != l.retry.id || show(failure["code"]) != strconv.Itoa(l.retry.code) || time.Now().After(l.retry.until) {
		return false
	}
	text := l.retry.message
	time.AfterFunc(5*time.Millisecond, func() { _ = l.conn.Send(Whole, []byte(text)) })
	return true
}

// ended handles the end of a connection.
func (r *runner) ended(a arrival) error {
	a.link.gone = true
	var end *EndedError
	orderly := errors.As(a.err, &end)
	for _, p := range r.block {
		if p.met || p.step.conn != a.link.name || p.step.optional {
			continue
		}
		if p.step.kind != closed || !orderly {
			return r.fail(p.step.at, "the connection ended instead: %v", a.err)
		}
		p.met = true
		if end.Code != 0 && p.step.code != 0 && end.Code != p.step.code {
			return r.fail(p.step.at, "got code %d %q", end.Code, end.Reason)
		}
		if end.Code != 0 && p.step.reason != nil && end.Reason != *p.step.reason && !r.opts.Reference {
			return r.fail(p.step.at, "got reason %q", end.Reason)
		}
		r.recorded = append(r.recorded, recorded{link: a.link, met: p})
		return nil
	}
	r.recorded = append(r.recorded, recorded{link: a.link, end: end})
	return fmt.Errorf("connection %q ended: %w", a.link.name, a.err)
}

// meet finds the expectation that a message meets.
func (r *runner) meet(l *link, message map[string]any) (*pending, error) {
	process := processOf(message)
	if err := r.number(l, process, message); err != nil {
		return nil, err
	}
	stage := -1
	diff := "nothing like it is expected"
	for _, p := range r.block {
		if p.met || p.step.conn != l.name || p.step.kind == closed {
			continue
		}
		if stage < 0 {
			stage = p.stage
		}
		if p.stage != stage && !r.opts.Reference {
			break
		}
		if !p.about(process, message) {
			continue
		}
		problem := r.try(p, message)
		if problem == "" {
			return p, nil
		}
		diff = fmt.Sprintf("line %d: %s: %s", p.step.at+1, p.step.text, problem)
		// The events of a process come in their order, but for the two streams
		// of output lines that stand together.
		if !r.opts.Reference && process != "" && p.step.kind != output && !p.step.optional {
			break
		}
	}
	return nil, fmt.Errorf("after line %d, connection %q sent %s\n\t%s", r.blockAt, l.name, show(message), diff)
}

// about reports whether a message can meet an expectation.
func (p *pending) about(process string, message map[string]any) bool {
	if p.step.kind == output || p.step.process != "" {
		return p.step.process == process
	}
	want := p.step.value.(map[string]any)
	return process == "" && show(want["id"]) == show(message["id"]) && show(want["method"]) == show(message["method"])
}

// try compares a message with an expectation and returns the difference, or "".
func (r *runner) try(p *pending, message map[string]any) string {
	if p.step.kind == output {
		return p.tryOutput(message)
	}
	m := matcher{vars: r.vars, reference: r.opts.Reference, captured: make(variables)}
	problem := m.match(p.step.value, message, "")
	if problem == "" {
		p.met = !p.step.repeated
		maps.Copy(r.vars, m.captured)
	}
	return problem
}

func (p *pending) tryOutput(message map[string]any) string {
	params, _ := message["params"].(map[string]any)
	chunk, _ := params["chunk"].(string)
	data, err := base64.StdEncoding.DecodeString(chunk)
	if plain, ok := message[dataMember].(string); ok {
		data = []byte(plain)
	}
	switch {
	case message["method"] != "process/output" || params["stream"] != p.step.stream:
		return "something else"
	case err != nil:
		return err.Error()
	case !strings.HasPrefix(p.rest, string(data)):
		return fmt.Sprintf("got %q, want %q", data, p.rest)
	}
	p.rest = p.rest[len(data):]
	p.met = p.rest == ""
	return ""
}

// number checks that the events of a process are numbered without gaps.
func (r *runner) number(l *link, process string, message map[string]any) error {
	params, _ := message["params"].(map[string]any)
	if message["method"] == "process/dropped" {
		delete(l.seqs, process) // the event that follows is the first after a gap
		l.resumed = true
	}
	seq, ok := params["seq"].(json.Number)
	if process == "" || !ok || r.opts.Reference {
		return nil
	}
	n, err := strconv.ParseUint(seq.String(), 10, 64)
	last, known := l.seqs[process]
	l.seqs[process] = n
	if err != nil || n != last+1 && (known || !l.resumed) {
		return fmt.Errorf("connection %q: process %q: event %s follows event %d", l.name, process, seq, last)
	}
	return nil
}
