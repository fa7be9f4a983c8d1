// Package fleet makes machines that dial out to NATS reachable at a gateway. docs/fleet.md
// describes the design.
//
// A machine calls [Join]: it asks a gateway to register its name in a JetStream bucket, renews
// the entry with heartbeats, and accepts connections with package natstransport. A gateway has
// a [Registry] for each account, which follows the bucket, and a [Gateway], which serves HTTP,
// finds the machine of a request and relays messages between the WebSocket and NATS. A gateway
// has no state of its own: the bucket lists the machines, and the machines own the sessions.
package fleet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"execserver/fleet/natstransport"
)

// Names in NATS.
const (
	// Bucket has the leases of names, which are the entries of their machines.
	Bucket = "exec_leases"
	// Placements has the machine of each session that a gateway has placed.
	Placements = "exec_placements"

	registerSubject = natstransport.DefaultPrefix + ".register."
	controlSubject  = natstransport.DefaultPrefix + ".control."
)

// Defaults of the registration.
const (
	// DefaultHeartbeat is the time between two heartbeats of a machine.
	DefaultHeartbeat = 2500 * time.Millisecond
	// Lifetime is how long a machine without a heartbeat is listed, and keeps its name if it has
	// no sessions.
	Lifetime = 8 * time.Second
	// SessionsHold is how long a machine with sessions keeps its name without a heartbeat: as
	// long as it keeps the session of a client that fell silent.
	SessionsHold = 30 * time.Minute
)

// Member is the entry of a machine, and the lease of its name. A gateway sets Pending and Held.
type Member struct {
	Name     string            `json:"name"`
	Instance string            `json:"instance,omitempty"` // differs each time it joins; not for clients
	Host     string            `json:"host,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Version  string            `json:"version"`
	System   string            `json:"system"` // such as linux/amd64
	Sandbox  string            `json:"sandbox,omitempty"`
	Joined   time.Time         `json:"joined"`
	Load     Load              `json:"load"`
	Renewal  string            `json:"renewal,omitempty"` // the request that made this revision; not for clients

	// Pending is set while a claim is not granted yet: see Registry.graceUntil. Held is set if
	// its machine has had the name before.
	Pending bool `json:"pending,omitempty"`
	Held    bool `json:"held,omitempty"`
}

// busy reports whether a machine has sessions, or a connection that may have begun one.
func (m *Member) busy() bool { return m.Load.Sessions > 0 || m.Load.Connections > 0 }

// Load is the load of a machine.
type Load struct {
	Sessions  int `json:"sessions"`
	Processes int `json:"processes"`
	Capacity  int `json:"capacity"` // sessions
	// Connections are those of clients, which Join counts.
	Connections int  `json:"connections,omitempty"`
	Draining    bool `json:"draining,omitempty"`
}

// ParseLabels parses labels of the form KEY=VALUE.
func ParseLabels(texts []string) (map[string]string, error) {
	labels := make(map[string]string, len(texts))
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		if !natstransport.ValidName(key) || !printable(value, maxText) {
			return nil, fmt.Errorf("invalid label %q; expected KEY=VALUE, or KEY, whose characters are A-Z a-z 0-9 _ -", text)
		}
		if _, again := labels[key]; again {
			return nil, fmt.Errorf("the label %q is given twice", key)
		}
		labels[key] = value
	}
	return labels, nil
}

// Bounds of an entry.
const (
	maxText   = 256 // bytes
	maxLabels = 64
	maxCount  = 1_000_000
)

// printable reports whether a text has at most max bytes, which can be shown on a terminal.
func printable(text string, max int) bool {
	return len(text) <= max && utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// check validates an entry.
func (m *Member) check() error {
	for what, text := range map[string]string{"host": m.Host, "version": m.Version, "system": m.System, "sandbox": m.Sandbox} {
		if !printable(text, maxText) {
			return fmt.Errorf("its %s must be at most %d bytes of printable text", what, maxText)
		}
	}
	if !natstransport.ValidName(m.Name) || !natstransport.ValidName(m.Instance) {
		return errors.New("its name or instance is invalid")
	}
	if len(m.Labels) > maxLabels {
		return fmt.Errorf("it has %d labels, the limit is %d", len(m.Labels), maxLabels)
	}
	for key, value := range m.Labels {
		if !natstransport.ValidName(key) || !printable(value, maxText) {
			return fmt.Errorf("its label %q is invalid", key)
		}
	}
	load := &m.Load
	for _, count := range []*int{&load.Sessions, &load.Processes, &load.Capacity, &load.Connections} {
		*count = min(max(*count, 0), maxCount) // the machine is not trusted
	}
	return nil
}

// Matches reports whether a machine has all labels of a selection: KEY=VALUE, or KEY for any
// value.
func (m *Member) Matches(selection []string) bool {
	for _, want := range selection {
		key, value, hasValue := strings.Cut(want, "=")
		if got, ok := m.Labels[key]; !ok || hasValue && got != value {
			return false
		}
	}
	return true
}

// LabelTexts returns the labels as KEY=VALUE, sorted.
func (m *Member) LabelTexts() []string {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(m.Labels)) {
		texts = append(texts, strings.TrimSuffix(key+"="+m.Labels[key], "="))
	}
	return texts
}

// InboxPrefix returns the prefix of the subjects at which a machine receives answers, for
// nats.CustomInboxPrefix.
func InboxPrefix(name string) string { return "_INBOX." + name }

// Permissions returns the subjects that a machine needs, in addition to the reply subjects of
// requests. A NATS server that the gateway does not run itself should allow its machines no
// others, and above all not JetStream, which replies to any subject.
func Permissions(name string) (publish, subscribe []string) {
	const prefix = natstransport.DefaultPrefix
	publish = []string{
		prefix + ".out." + name + ".>",
		registerSubject + name,
	}
	subscribe = []string{
		prefix + ".open." + name,
		prefix + ".in." + name + ".>",
		controlSubject + name,
		InboxPrefix(name) + ".>",
	}
	return publish, subscribe
}
