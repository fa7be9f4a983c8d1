//go:build !linux

package filesystem

import "context"

// WatchesMissing reports whether a MissingWatch can watch anything on this system.
const WatchesMissing = false

// missingSlot never exists on this system, which can watch neither the mount table nor
// single names in a directory. Arm refuses every watch.
type missingSlot struct{}

func newMissingSlot(context.Context, []string, string, func()) *missingSlot { return nil }

func (s *missingSlot) begin() {}
func (s *missingSlot) stop()  {}
