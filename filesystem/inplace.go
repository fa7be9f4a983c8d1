package filesystem

import (
	"context"
	"time"
)

// inPlaceTimeout bounds how long a change in place goes on after its context has
// ended. Only what never ends takes as long, such as a copy of a file that grows
// as quickly as it is read.
const inPlaceTimeout = 10 * time.Minute

// beginInPlace is called before the first byte of a file is changed that others
// see meanwhile. Whoever asked for the change may go away, and nobody would learn
// that the file is torn: so the change goes on with the returned context, which
// outlives ctx. end must be called after the last byte.
func (o WriteOptions) beginInPlace(ctx context.Context) (lasting context.Context, end func(), err error) {
	done := func() {}
	if o.InPlace != nil {
		done = o.InPlace()
	}
	if ctx.Err() != nil { // looked at last: who has ended it sees what has begun
		done()
		return nil, nil, context.Cause(ctx)
	}
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(inPlaceTimeout):
			cancel(context.Cause(ctx))
		case <-lasting.Done():
		}
	})
	return lasting, func() {
		stop()
		cancel(nil)
		done()
	}, nil
}
