package filesystem_test

import (
	"context"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

func TestSystemWalkUnreadable(t *testing.T) {
	testkit.System(t, testkit.Root)
	dir := sharedDir(t)
	put(t, dir+"/open/f\xff", "")
	put(t, dir+"/closed/below/f", "")
	ok(t, "chmod", os.Chmod(dir+"/closed", 0o700))
	var got filesystem.WalkResult
	var err error
	asNobody(t, func() { got, err = filesystem.Walk(context.Background(), dir, walkAll) })
	ok(t, "walk", err)
	if len(got.Errors) != 1 || got.Errors[0].Path != dir+"/closed" {
		t.Fatalf("errors: %+v", got.Errors)
	}
	wantError(t, "closed", got.Errors[0].Err, filesystem.InvalidInput, "permission denied (os error 13)")
	want := []filesystem.WalkEntry{{Path: dir + "/closed", IsDirectory: true}, {Path: dir + "/open", IsDirectory: true}, {Path: dir + "/open/f\xff"}}
	if diff := cmp.Diff(want, got.Entries); diff != "" {
		t.Error(diff)
	}
	asNobody(t, func() { got, err = filesystem.Walk(context.Background(), dir+"/closed", walkAll) })
	if err != nil || len(got.Entries) != 0 || len(got.Errors) != 1 {
		t.Errorf("unreadable root: %+v, %v", got, err)
	}
	asNobody(t, func() { got, err = filesystem.Walk(context.Background(), dir+"/closed/below", walkAll) })
	wantError(t, "below", err, filesystem.InvalidInput, "permission denied (os error 13)")
}
