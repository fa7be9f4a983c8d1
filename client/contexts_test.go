package client_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"execserver/client"
)

// A method that may wait takes a context first. Those that may not, or say why they take
// none, are listed.
func TestContexts(t *testing.T) {
	t.Parallel()
	none := map[reflect.Type][]string{
		reflect.TypeFor[*client.Environment](): {"Close", "Done", "Err", "FS", "Info", "Observing", "Session", "Transport"},
		reflect.TypeFor[*client.Process]():     nil,
	}
	for typ, without := range none {
		for m := range typ.Methods() {
			takes := m.Type.NumIn() > 1 && m.Type.In(1) == reflect.TypeFor[context.Context]()
			if listed := slices.Contains(without, m.Name); takes == listed {
				t.Errorf("%s.%s takes a context: %v", typ, m.Name, takes)
			}
		}
	}
}
