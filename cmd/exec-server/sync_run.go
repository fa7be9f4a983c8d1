package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"execserver/client"
	"execserver/protocol"
)

// syncRun is a push or a pull in progress.
type syncRun struct {
	env    *client.Environment
	push   bool // or pull
	local  string
	there  string
	files  string // filesAll, filesGit, or "" for what the record says
	decide int    // about conflicts
	remove bool   // what was removed on the other side
	dry    bool
	quiet  bool
	out    io.Writer // lists the files
	failed bool
	copied int64 // files

	record *syncRecord
	root   *os.Root
	here   *side
	far    *side
	filter *syncFilter
}

// exitConflicts is the exit code of push and pull when conflicts remain.
const exitConflicts = 3

// run pushes or pulls. The error is an exitCode when it has told what is wrong.
func (r *syncRun) run(ctx context.Context) error {
	if !r.env.Info().Capabilities["fsMetadata"] {
		return errors.New("the server does not report times and links of files, without which push and pull cannot tell what has changed; " + adviceToServe)
	}
	plan, err := r.plan(ctx)
	if err != nil {
		return err
	}
	defer r.root.Close()
	r.show(plan)
	if r.dry {
		return r.result(plan)
	}
	if err := r.copy(ctx, plan); err != nil {
		return err
	}
	if r.remove {
		if err := r.removeAll(ctx, plan); err != nil {
			return err
		}
	}
	if err := r.remember(ctx, plan); err != nil {
		return fmt.Errorf("remember what was copied: %w", err)
	}
	return r.result(plan)
}

// plan reads both sides and compares them.
func (r *syncRun) plan(ctx context.Context) (_ *syncPlan, err error) {
	if !r.push && !r.dry {
		if err := os.MkdirAll(r.local, 0o777); err != nil {
			return nil, err
		}
	}
	if r.root, err = os.OpenRoot(r.local); err != nil {
		return nil, err
	}
	plan, err := r.compare(ctx)
	if err != nil {
		_ = r.root.Close()
	}
	return plan, err
}

func (r *syncRun) compare(ctx context.Context) (*syncPlan, error) {
	var err error
	if r.record, err = openRecord(ctx, r.env, r.local, r.there); err != nil {
		return nil, err
	}
	if r.files != "" {
		r.record.Choice = r.files
	}
	files := r.env.FS(r.there).WithContext(ctx)
	info, err := files.Stat(".")
	switch {
	case errors.Is(err, fs.ErrNotExist) && r.push:
	case err != nil:
		return nil, pathError("read", r.there, err)
	case !info.IsDir():
		return nil, fmt.Errorf("%s is not a directory on the machine", printable(r.there))
	}
	if err != nil || created(info) != r.record.Created { // another directory, which has lost nothing
		clear(r.record.Files)
	}
	if r.filter, err = newSyncFilter(ctx, r.record.Choice, r.local, r.record.Files); err != nil {
		return nil, err
	}
	r.here, r.far = localSide(r.root), farSide(files)
	r.here.modes = runtime.GOOS != "windows" && r.env.Info().OS != "windows"
	r.far.modes = r.here.modes
	if err := r.here.read(ctx, r.filter); err != nil {
		return nil, err
	}
	if err := r.far.read(ctx, r.filter.there()); err != nil && !(r.push && errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	if len(r.here.files) == 0 || len(r.far.files) == 0 { // rather a new directory than one without its files
		clear(r.record.Files)
	}
	from, to := r.sides()
	plan, err := newSyncPlan(ctx, r.record.Files, from, to, r.decide)
	if err == nil && !r.push { // what works there must not run programs here
		plan.withhold(runsHere)
	}
	return plan, err
}

func (r *syncRun) sides() (from, to *side) {
	if r.push {
		return r.here, r.far
	}
	return r.far, r.here
}

// show lists what is to be done, and what is not.
func (r *syncRun) show(plan *syncPlan) {
	from, to := r.sides()
	line := func(what, name, why string) { fmt.Fprintf(r.out, "%-9s %s%s\n", what, printable(name), why) }
	if !r.quiet {
		for _, name := range plan.names(syncCopy) {
			what := "update"
			if _, ok := to.files[name]; !ok {
				what = "new"
			}
			line(what, name, "")
		}
		for _, name := range plan.names(syncDelete) {
			if r.remove {
				line("delete", name, "")
			} else {
				line("keep", name, "  (removed "+from.name+"; --delete removes it "+to.name+", too)")
			}
		}
	}
	for _, name := range plan.names(syncWithheld) {
		line("withheld", name, "  (git or Codex would run here what it says; look at it, and copy it with cp)")
	}
	for _, name := range plan.names(syncConflict) {
		_, here := r.here.files[name]
		_, there := r.far.files[name]
		why := "  (changed here and there)"
		switch {
		case !here:
			why = "  (removed here, changed there)"
		case !there:
			why = "  (changed here, removed there)"
		}
		line("conflict", name, why)
	}
}

// copy copies the files of the plan.
func (r *syncRun) copy(ctx context.Context, plan *syncPlan) error {
	names := plan.names(syncCopy)
	if len(names) == 0 {
		return nil
	}
	wanted := make(map[string]bool)
	for _, name := range names {
		for ; name != "." && !wanted[name]; name = path.Dir(name) {
			wanted[name] = true
		}
	}
	report := &copyReport{}
	var m *meter
	if !r.quiet {
		m = newMeter(os.Stderr)
	}
	opts := &client.CopyOptions{
		Only: func(name string, _ bool) bool { return wanted[name] },
		Progress: func(p client.CopyProgress) {
			report.Files, report.Bytes = p.Files, p.Bytes
			m.show(&copyReport{}, p)
		},
		Problem: func(p *fs.PathError) {
			m.clear()
			fmt.Fprintf(os.Stderr, "Error: %s\n", advise(withRoom(pathError("copy", p.Path, p))))
			r.failed = true
		},
	}
	files := r.env.FS(r.there).WithContext(ctx)
	var err error
	if r.push {
		if err = files.MkdirAll("."); err != nil {
			return pathError("make", r.there, err)
		}
		err = files.CopyIn(r.local, ".", opts)
	} else {
		err = files.CopyOut(".", r.local, opts)
	}
	m.clear()
	r.copied = report.Files
	if errors.As(err, new(*client.CopyError)) {
		return nil // told already
	}
	return withRoom(err)
}

// removeAll removes the files that are gone on the side that is copied from.
func (r *syncRun) removeAll(ctx context.Context, plan *syncPlan) error {
	remove := func(name string) error { return r.root.Remove(filepath.FromSlash(name)) }
	if r.push {
		remove = r.env.FS(r.there).WithContext(ctx).Remove
	}
	for _, name := range plan.names(syncDelete) {
		if err := remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(os.Stderr, "Error: %s\n", advise(pathError("remove", name, err)))
			r.failed = true
			delete(plan.steps, name)
		}
	}
	return context.Cause(ctx)
}

// remember records the files as both sides have them now. It looks at both sides again,
// because a file may have failed, or changed meanwhile.
func (r *syncRun) remember(ctx context.Context, plan *syncPlan) error {
	if len(plan.names(syncCopy)) > 0 {
		for _, name := range plan.names(syncCopy) {
			r.filter.add(name)
		}
		if err := r.here.read(ctx, r.filter); err != nil {
			return err
		}
		if err := r.far.read(ctx, r.filter.there()); err != nil {
			return err
		}
	}
	var unknown []string
	for name, step := range plan.steps {
		here, isHere := r.here.files[name]
		there, isThere := r.far.files[name]
		switch {
		case step == syncCopy && isHere && isThere && here.looks(there):
			plan.base[name] = here
		case step == syncDelete && r.remove:
			delete(plan.base, name)
		}
	}
	for name, state := range plan.base {
		if here, ok := r.here.files[name]; ok && state.Hash == "" && state.looks(here) {
			unknown = append(unknown, name)
		}
	}
	if err := r.here.hash(ctx, unknown); err != nil {
		return err
	}
	for _, name := range unknown {
		state := plan.base[name]
		state.Hash = r.here.files[name].Hash
		plan.base[name] = state
	}
	r.record.Files = plan.base
	info, err := r.env.FS(r.there).WithContext(ctx).Stat(".")
	if err != nil {
		return err
	}
	r.record.Created = created(info)
	return r.record.save()
}

// created returns when a file of the other machine was made, in Unix milliseconds, or 0.
func created(info fs.FileInfo) int64 {
	meta, _ := info.Sys().(protocol.FileMetadata)
	return meta.CreatedAtMs
}

// result says how it ended.
func (r *syncRun) result(plan *syncPlan) error {
	count := func(step syncStep) int { return len(plan.names(step)) }
	verb := map[bool]string{true: "pushed", false: "pulled"}[r.push]
	if r.dry {
		verb = "would be " + verb
	}
	parts := []string{countFiles(int64(count(syncCopy))) + " " + verb}
	if r.failed {
		parts[0] = grouped(r.copied) + " of " + parts[0]
	}
	if n := count(syncDelete); n > 0 {
		what := "kept that are gone " + map[bool]string{true: "here", false: "there"}[r.push]
		if r.remove {
			what = "removed"
		}
		parts = append(parts, fmt.Sprintf("%s %s", grouped(int64(n)), what))
	}
	if n := count(syncWithheld); n > 0 {
		parts = append(parts, grouped(int64(n))+" withheld")
	}
	if n := count(syncConflict); n > 0 {
		parts = append(parts, fmt.Sprintf("%s in conflict, left as they are", grouped(int64(n))))
	}
	fmt.Fprintln(os.Stderr, strings.Join(parts, ", "))
	switch {
	case r.failed:
		return exitCode(1)
	case count(syncConflict) > 0:
		return exitCode(exitConflicts)
	}
	return nil
}
