package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"execserver/transport/natstransport"
)

// Names in NATS.
const (
	// Bucket has the members by their names.
	Bucket = "exec_fleet"
	// Placements has the machine of each session that a gateway has placed.
	Placements = "exec_placements"

	controlSubject = natstransport.DefaultPrefix + ".control."
)

// Defaults of the registration.
const (
	// DefaultHeartbeat is the time between two heartbeats of a machine.
	DefaultHeartbeat = 2500 * time.Millisecond
	// Lifetime is how long an entry without a heartbeat stays.
	Lifetime = 8 * time.Second
	// placementLifetime is the longest lease of a session.
	placementLifetime = 24 * time.Hour
)

// Member is the entry of a machine.
type Member struct {
	Name     string            `json:"name"`
	Instance string            `json:"instance"` // differs each time it joins
	Host     string            `json:"host,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Version  string            `json:"version"`
	System   string            `json:"system"` // such as linux/amd64
	Sandbox  string            `json:"sandbox,omitempty"`
	Joined   time.Time         `json:"joined"`
	Load     Load              `json:"load"`
}

// Load is what a machine does.
type Load struct {
	Sessions  int  `json:"sessions"`
	Processes int  `json:"processes"`
	Capacity  int  `json:"capacity"` // sessions
	Draining  bool `json:"draining,omitempty"`
}

// ParseLabels parses labels of the form KEY=VALUE.
func ParseLabels(texts []string) (map[string]string, error) {
	labels := make(map[string]string, len(texts))
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		if !natstransport.ValidName(key) || len(value) > 256 || strings.ContainsAny(value, "\n\r\x00") {
			return nil, fmt.Errorf("invalid label %q; expected KEY=VALUE, or KEY, whose characters are A-Z a-z 0-9 _ -", text)
		}
		if _, again := labels[key]; again {
			return nil, fmt.Errorf("the label %q is given twice", key)
		}
		labels[key] = value
	}
	return labels, nil
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

// bucket returns the bucket of members, which a gateway has created.
func bucket(ctx context.Context, nc *nats.Conn, name string) (jetstream.KeyValue, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return js.KeyValue(ctx, name)
}

// createBuckets creates what a gateway and its machines need, or finds it. replicas is the
// number of NATS servers that hold it.
func createBuckets(ctx context.Context, nc *nats.Conn, replicas int) (members, placements jetstream.KeyValue, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, nil, err
	}
	create := func(config jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
		kv, err := js.KeyValue(ctx, config.Bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			kv, err = js.CreateOrUpdateKeyValue(ctx, config)
		}
		if err != nil {
			return nil, fmt.Errorf("open the bucket %s: %w", config.Bucket, err)
		}
		return kv, nil
	}
	// Members come back by themselves, so memory is enough for them.
	members, err = create(jetstream.KeyValueConfig{
		Bucket: Bucket, Description: "machines by name", History: 1, TTL: Lifetime,
		Storage: jetstream.MemoryStorage, Replicas: replicas, MaxValueSize: maxEntry,
	})
	if err != nil {
		return nil, nil, err
	}
	placements, err = create(jetstream.KeyValueConfig{
		Bucket: Placements, Description: "machines of placed sessions", History: 1, TTL: placementLifetime,
		Storage: jetstream.FileStorage, Replicas: replicas, MaxValueSize: maxEntry,
	})
	return members, placements, err
}

// maxEntry bounds an entry of a bucket.
const maxEntry = 16 << 10

// InboxPrefix returns the prefix of the subjects at which a machine receives answers, for
// nats.CustomInboxPrefix.
func InboxPrefix(name string) string { return "_INBOX." + name }

// Permissions returns the subjects that a machine needs, besides those that requests to it
// ask it to answer. A NATS server that the gateway does not run itself should allow its
// machines no others.
func Permissions(name string) (publish, subscribe []string) {
	const prefix, entry = natstransport.DefaultPrefix, "$KV." + Bucket + "."
	publish = []string{
		prefix + ".out." + name + ".>",
		entry + name,
		"$JS.API.STREAM.INFO.KV_" + Bucket,
		"$JS.API.DIRECT.GET.KV_" + Bucket + "." + entry + name,
	}
	subscribe = []string{
		prefix + ".open." + name,
		prefix + ".in." + name + ".>",
		controlSubject + name,
		InboxPrefix(name) + ".>",
	}
	return publish, subscribe
}
