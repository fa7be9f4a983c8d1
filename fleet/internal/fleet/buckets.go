package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// placementLifetime is how long an entry of Placements stays. It is longer than the longest
// lease of a session, which is a day, and refreshPlacement.
const placementLifetime = 36 * time.Hour

// Bounds of the buckets. They are numbers of entries, because JetStream reserves the space of a
// bound in bytes, so a small NATS server would have buckets for few accounts.
const (
	maxEntry      = 16 << 10 // as JSON
	maxMembers    = 16 << 10
	maxLeases     = 4 * maxMembers // with those of machines that have left
	maxPlacements = 1 << 20
)

// buckets are the JetStream buckets of the gateways of an account. Machines have no access.
type buckets struct {
	members, placements jetstream.KeyValue
}

// openBuckets opens the buckets, and creates them if necessary. replicas is the number of NATS
// servers that store them. lease is the lifetime of a lease without renewal.
func openBuckets(ctx context.Context, nc *nats.Conn, replicas int, lease time.Duration) (*buckets, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	// On disk, so that a machine with sessions has its name when the gateways start again.
	members, err := openBucket(ctx, js, jetstream.KeyValueConfig{
		Bucket: Bucket, Description: "leases of names", History: 1, TTL: lease,
		Storage: jetstream.FileStorage, Replicas: replicas, MaxValueSize: maxEntry,
	}, maxLeases)
	if err != nil {
		return nil, err
	}
	placements, err := openBucket(ctx, js, jetstream.KeyValueConfig{
		Bucket: Placements, Description: "machines of placed sessions", History: 1, TTL: placementLifetime,
		Storage: jetstream.FileStorage, Replicas: replicas, MaxValueSize: maxEntry,
	}, maxPlacements)
	return &buckets{members, placements}, err
}

// gone returns an error if a bucket no longer exists, as after the loss of a disk. It returns
// nil if JetStream does not answer.
func (b *buckets) gone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	for _, one := range []jetstream.KeyValue{b.members, b.placements} {
		if _, err := one.Status(ctx); errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("look for the bucket %s: %w", one.Bucket(), err)
		}
	}
	return nil
}

// openBucket opens or creates a bucket, and restricts its stream.
func openBucket(ctx context.Context, js jetstream.JetStream, config jetstream.KeyValueConfig, entries int64) (jetstream.KeyValue, error) {
	_, err := js.KeyValue(ctx, config.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		_, err = js.CreateOrUpdateKeyValue(ctx, config)
	}
	if err == nil {
		err = tighten(ctx, js, "KV_"+config.Bucket, entries)
	}
	var kv jetstream.KeyValue
	if err == nil {
		kv, err = js.KeyValue(ctx, config.Bucket) // reads with the new configuration of the stream
	}
	if err != nil {
		return nil, fmt.Errorf("open the bucket %s: %w", config.Bucket, err)
	}
	return kv, nil
}

// tighten disables features of a stream that the gateways do not need. Without direct reads
// the leader answers, so "not found" does not come from a follower that lags. Without rollups,
// no message can replace others.
func tighten(ctx context.Context, js jetstream.JetStream, name string, entries int64) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	config := stream.CachedInfo().Config
	if !config.AllowDirect && !config.AllowRollup && config.MaxMsgs == entries {
		return nil
	}
	config.AllowDirect, config.AllowRollup, config.MaxMsgs = false, false, entries
	_, err = js.UpdateStream(ctx, config)
	return err
}
