package ownership_test

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
)

// TestPidfdRefused: without pidfds, background processes are signalled by pid. If
// descriptors have only run out, the pid is not used, because it may have been reused.
func TestPidfdRefused(t *testing.T) {
	for name, refused := range map[string]struct {
		errno    unix.Errno
		signaled bool
	}{
		"old kernel": {unix.ENOSYS, true}, "container": {unix.EPERM, true},
		"no descriptors": {unix.EMFILE, false}, "no files": {unix.ENFILE, false}, "no memory": {unix.ENOMEM, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !testkit.WithRefused(t, unix.SYS_PIDFD_OPEN, refused.errno) {
				return
			}
			w := processtest.Owner(t, nil)
			shell := processtest.Shell("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")
			s := processtest.Follow(t, processtest.Start(t, shell, &process.Options{Owner: w}))
			pid, err := strconv.Atoi(strings.TrimSpace(s.All))
			if err != nil {
				t.Fatal(err)
			}
			err = w.SignalBackground(left(t, w, pid), syscall.SIGSTOP)
			unknown := (*ownership.UnknownBackgroundError)(nil)
			if (err == nil) != refused.signaled || errors.As(err, &unknown) {
				t.Errorf("SignalBackground: %v", err)
			}
			_ = unix.Kill(pid, unix.SIGKILL)
			testkit.Gone(t, pid)
		})
	}
}

// TestTagRefused: a tag that cannot be read just now is not taken for none.
func TestTagRefused(t *testing.T) {
	t.Parallel()
	if !testkit.WithRefused(t, unix.SYS_ACCT, unix.EPERM) { // a system call that is never used
		return
	}
	o := processtest.Ownership(t, &ownership.Options{Subreaper: true})
	w := o.NewOwner()
	p, pid := daemon(t, w, newWord())
	processtest.Follow(t, p)
	id := left(t, w, pid)
	if err := testkit.Refuse(unix.SYS_PRLIMIT64, unix.ENOMEM); err != nil {
		t.Skipf("no filter of system calls: %v", err)
	}
	if err, unknown := w.SignalBackground(id, syscall.SIGSTOP), (*ownership.UnknownBackgroundError)(nil); err == nil || errors.As(err, &unknown) {
		t.Errorf("SignalBackground: %v", err)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	testkit.Gone(t, pid)
}

// left returns the id of the only process that closed processes of an owner have left.
func left(t *testing.T, w *ownership.Owner, pid int) (id string) {
	t.Helper()
	list := w.Background()
	if len(list) != 1 || list[0].Pid != pid {
		t.Fatalf("Background is %+v, want %d", list, pid)
	}
	return list[0].ID
}
