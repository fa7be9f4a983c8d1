package filesystem

import (
	"context"
	"time"
)

// inPlaceTimeout bounds how long a change in place continues after its context has ended.
// Only a change that would never end takes as long, such as a copy of a file that grows
// as quickly as it is read.
const inPlaceTimeout = 10 * time.Minute

// beginInPlace is called before the first byte of a visible file changes. If the client
// went away in the middle, nobody would learn that the file is torn. So the change
// continues with the returned context, which outlives ctx. The caller must call end after
// the last byte.
func (o WriteOptions) beginInPlace(ctx context.Context) (lasting context.Context, end func(), err error) {
	done := func() {}
	if o.InPlace != nil {
		done = o.InPlace()
	}
	if ctx.Err() != nil { // checked last, so that a caller that ended ctx sees the change as begun
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
