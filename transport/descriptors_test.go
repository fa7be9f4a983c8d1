//go:build unix

package transport_test

import (
	"fmt"
	"slices"
	"testing"

	"execserver/internal/testkit"
	"execserver/transport"
)

// TestDescriptors counts what connections leave behind, however they end.
func TestDescriptors(t *testing.T) {
	round := func(t *testing.T) {
		for _, k := range slices.Repeat(kinds, 3) {
			for _, first := range []string{"near", "far"} {
				t.Run(k.Name+" "+first, func(t *testing.T) {
					near, end := k.Connect(t, 0)
					if err := end.Send([]byte("x")); err != nil {
						t.Fatal(err)
					}
					if _, err := near.Read(nil); err != nil {
						t.Fatal(err)
					}
					if first == "near" {
						_ = near.Close(transport.Reason{Code: transport.CodeNormal})
					}
				})
			}
		}
	}
	t.Run("warm up", round)
	before := testkit.Descriptors(t)
	t.Run("measured", round)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if now := testkit.Descriptors(t); now > before {
			return fmt.Errorf("%d descriptors open, %d before", now, before)
		}
		return nil
	})
}
