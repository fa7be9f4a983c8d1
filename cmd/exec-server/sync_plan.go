package main

import (
	"context"
	"maps"
	"slices"
)

// syncStep is what push or pull does, or would do, with a file.
type syncStep int

const (
	syncCopy     syncStep = iota // it is new or changed where it comes from
	syncDelete                   // it is gone there
	syncConflict                 // it has changed on both sides
	syncWithheld                 // it has changed, but it is not for the other side to decide
)

// syncPlan says what is to be done to make one side like the other. The base has the files
// as both sides had them at the end of the push or pull before.
type syncPlan struct {
	steps map[string]syncStep
	base  map[string]fileState // changed where the sides agree by themselves
}

// How conflicts are decided.
const (
	conflictsStay = iota
	conflictsFrom // the side that is copied from is right
	conflictsTo   // the other one is
)

// newSyncPlan compares what was, what is to be copied, and what would be overwritten. It
// reads files whose size is the same and whose time is not.
func newSyncPlan(ctx context.Context, base map[string]fileState, from, to *side, decide int) (*syncPlan, error) {
	p := &syncPlan{steps: make(map[string]syncStep), base: base}
	names := make(map[string]bool)
	for _, files := range []map[string]fileState{base, from.files, to.files} {
		for name := range files {
			names[name] = true
		}
	}
	for _, s := range []*side{from, to} {
		if err := s.hash(ctx, doubtful(s, base)); err != nil {
			return nil, err
		}
	}
	var both []string // that look changed on both sides
	for name := range names {
		if !changed(base, from, name) {
			continue
		}
		if changed(base, to, name) {
			both = append(both, name)
		} else if _, ok := from.files[name]; ok {
			p.steps[name] = syncCopy
		} else {
			p.steps[name] = syncDelete
		}
	}
	var compare []string
	for _, name := range both {
		f, inFrom := from.files[name]
		t, inTo := to.files[name]
		if inFrom && inTo && f.alike(t) && !f.looks(t) {
			compare = append(compare, name)
		}
	}
	for _, s := range []*side{from, to} {
		if err := s.hash(ctx, compare); err != nil {
			return nil, err
		}
	}
	for _, name := range both {
		p.settle(name, from, to, decide)
	}
	return p, nil
}

// doubtful returns the files whose times alone differ from the base.
func doubtful(s *side, base map[string]fileState) (names []string) {
	for name, state := range s.files {
		if was, ok := base[name]; ok && was.Hash != "" && state.alike(was) && !state.looks(was) {
			names = append(names, name)
		}
	}
	return names
}

// same reports whether two states, whose hashes are known where it matters, are the same.
func same(a, b fileState) bool {
	return a.looks(b) || a.alike(b) && a.Hash != "" && a.Hash == b.Hash
}

// changed reports whether a file of a side is not as in the base.
func changed(base map[string]fileState, s *side, name string) bool {
	was, inBase := base[name]
	is, there := s.files[name]
	return inBase != there || there && !same(was, is)
}

// settle decides about a file that has changed on both sides.
func (p *syncPlan) settle(name string, from, to *side, decide int) {
	f, inFrom := from.files[name]
	t, inTo := to.files[name]
	switch {
	case !inFrom && !inTo:
		delete(p.base, name)
	case inFrom && inTo && same(f, t):
		p.base[name] = f
	case decide == conflictsFrom && inFrom:
		p.steps[name] = syncCopy
	case decide == conflictsFrom:
		p.steps[name] = syncDelete
	case decide == conflictsTo && inFrom: // as if it had been copied and changed since
		p.base[name] = f
	case decide == conflictsTo:
		delete(p.base, name)
	default:
		p.steps[name] = syncConflict
	}
}

// names returns the files that need a step, sorted.
func (p *syncPlan) names(step syncStep) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(p.steps)) {
		if p.steps[name] == step {
			names = append(names, name)
		}
	}
	return names
}
