//go:build linux && faults

package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"execserver/internal/extension"
	"execserver/internal/fault"
	"execserver/internal/ownership"
	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
	"execserver/server"
)

// markVariable marks the processes that a test starts, so that the test finds all of them.
const markVariable = "EXEC_SERVER_TEST_FAULTS"

// slow is a time that no answer may take, whatever fails.
const slow = 5 * time.Second

// driver drives one server through all scenarios.
type driver struct {
	t     *testing.T
	ctx   context.Context
	dir   string
	url   string // of a server that keeps sessions
	brief string // of a server whose sessions end with their connection
	owner *ownership.Ownership
	group string // holds the control groups; "": there are none
	mark  string

	session *testclient.Session
	last    int // number of the last process
	started []*proc

	kinds      map[string]int // descriptors that are explained
	owned      int
	goroutines int
	groups     int

	places   map[string]bool
	hits     map[string]bool
	attempts int
	findings map[string]int
}

func newDriver(t *testing.T, owner *ownership.Ownership, group string) *driver {
	d := &driver{
		t: t, ctx: t.Context(), dir: t.TempDir(), owner: owner, group: group,
		mark:   strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36),
		places: make(map[string]bool), hits: make(map[string]bool), findings: make(map[string]int),
	}
	d.url = d.serve(owner, server.SessionOptions{})
	d.brief = d.serve(owner, server.SessionOptions{DetachedTTL: time.Millisecond})
	d.session = &testclient.Session{URL: d.url, Patience: 2 * slow}
	if err := testclient.Open(d.ctx, d.session); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.session.Close)
	return d
}

func (d *driver) serve(owner *ownership.Ownership, o server.SessionOptions) (url string) {
	srv := server.New(&server.Options{Auth: server.Unauthenticated, Session: o, Extensions: &extension.Options{Ownership: owner}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	go srv.ServeWebSocket(listener{l})
	d.t.Cleanup(func() { testkit.Shutdown(d.t, srv) })
	return "ws://" + l.Addr().String()
}

// call makes a request that the server must answer soon. The error is a refusal or a
// *violation.
func (d *driver) call(method string, params, result any) error {
	ctx, cancel := context.WithTimeout(d.ctx, testkit.Patience)
	defer cancel()
	begun := time.Now()
	err := d.session.Call(ctx, method, params, result)
	var refused *protocol.Error
	if err != nil && !errors.As(err, &refused) {
		return violated("%s is not answered: %v", method, err)
	}
	if took := time.Since(begun); took > slow {
		return violated("%s takes %v", method, took)
	}
	return err
}

// violation is a broken contract.
type violation struct{ text string }

func (v *violation) Error() string { return v.text }

func violated(format string, args ...any) error { return &violation{fmt.Sprintf(format, args...)} }

// proc is a process of the session.
type proc struct {
	*testclient.Process
	d *driver

	mu     sync.Mutex
	output strings.Builder
}

func (p *proc) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// start starts a shell command.
func (d *driver) start(script string, options ...func(*protocol.StartParams)) (*proc, error) {
	d.last++
	p := &proc{d: d, Process: &testclient.Process{ID: strconv.Itoa(d.last)}}
	p.Take = func(_ string, data []byte) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.output.Write(data)
	}
	params := protocol.StartParams{
		Argv: []string{"/bin/sh", "-c", script},
		Cwd:  protocol.URIPath(d.dir),
		Env:  map[string]string{"PATH": os.Getenv("PATH"), markVariable: d.mark},
	}
	for _, option := range options {
		option(&params)
	}
	ctx, cancel := context.WithTimeout(d.ctx, testkit.Patience)
	defer cancel()
	begun := time.Now()
	err := d.session.Start(ctx, p.Process, params)
	var refused *protocol.Error
	switch took := time.Since(begun); {
	case err != nil && !errors.As(err, &refused):
		return nil, violated("the start is not answered: %v", err)
	case took > slow:
		return nil, violated("the start takes %v", took)
	case err != nil:
		return nil, err
	}
	d.started = append(d.started, p)
	return p, nil
}

func stdin(p *protocol.StartParams) { p.PipeStdin = true }

func tty(p *protocol.StartParams) { p.TTY = true }

// ended waits until a process has closed, and checks how it ended.
func (p *proc) ended(want ...string) error {
	ctx, cancel := context.WithTimeout(p.d.ctx, testkit.Patience)
	defer cancel()
	if _, err := p.Wait(ctx); err != nil {
		return violated("%v", err)
	}
	var result struct {
		ExitCode        *int
		Signal, EndedBy string
	}
	if err := p.d.call(protocol.MethodWait, protocol.WaitParams{ProcessID: p.ID}, &result); err != nil {
		return err
	}
	if result.ExitCode == nil {
		return violated("a closed process has no exit")
	}
	got := fmt.Sprintf("code %d", *result.ExitCode)
	if result.Signal != "" {
		got = fmt.Sprintf("%s by %s", result.Signal, result.EndedBy)
	}
	if !slices.Contains(want, got) {
		return violated("ended with %s, want %q", got, want)
	}
	return nil
}

func (p *proc) write(data string) error {
	params := map[string]any{"processId": p.ID, "chunk": []byte(data), "writeId": "w"}
	var result struct{ Status protocol.WriteStatus }
	if err := p.d.call(protocol.MethodWrite, params, &result); err != nil {
		return err
	}
	if result.Status != protocol.WriteAccepted {
		return violated("the write is answered with %q", result.Status)
	}
	return nil
}

// attempt runs a scenario with one fault, and reports whether the fault occurred.
func (d *driver) attempt(s scenario, plan fault.Plan) (fault.Report, bool) {
	d.attempts++
	resumes := d.session.Resumes()
	armed := false
	err := s.run(d, func() { armed = true; fault.Arm(plan) })
	var report fault.Report
	if armed {
		report = fault.Disarm()
	}
	var broken *violation
	if err != nil && len(report.Hits) == 0 && !errors.As(err, &broken) {
		err = violated("refused without a fault: %v", err)
	}
	what := fmt.Sprintf("%v", plan.Err)
	if plan.Err == 0 {
		what = "late"
	}
	if plan.Times > 1 {
		what += fmt.Sprintf(" %d times", plan.Times)
	}
	tell := func(err error) {
		place := plan.Place
		if len(report.Hits) > 0 {
			place = report.Hits[0]
		}
		text := fmt.Sprintf("%s: %s at call %d of %q: %v", s.name, what, plan.N, place, err)
		key := place + variable.ReplaceAllString(err.Error(), "#")
		if d.findings[key]++; d.findings[key] == 1 {
			d.t.Error(text)
		}
	}
	if errors.As(err, &broken) {
		tell(err)
	}
	overNetwork := slices.ContainsFunc(report.Hits, func(h string) bool { return strings.HasPrefix(h, "conn ") || strings.HasPrefix(h, "accept") })
	if n := d.session.Resumes() - resumes; n > 0 && !overNetwork && !s.cuts {
		tell(violated("the connection was lost"))
	}
	d.clean()
	if err := d.settle(); err != nil {
		tell(err)
		d.explain() // or every attempt from now on would tell the same
	}
	for _, p := range report.Places {
		d.places[p] = true
	}
	for _, h := range report.Hits {
		d.hits[h] = true
	}
	return report, len(report.Hits) > 0
}

var variable = regexp.MustCompile(`[0-9.]+`)

// clean ends the processes that a scenario has left.
func (d *driver) clean() {
	for _, p := range d.started {
		select {
		case <-p.Closed():
			continue
		default:
		}
		ctx, cancel := context.WithTimeout(d.ctx, testkit.Patience)
		_ = d.session.Call(ctx, protocol.MethodTerminate, protocol.TerminateParams{ProcessID: p.ID}, nil)
		if _, err := p.Wait(ctx); err != nil {
			d.t.Errorf("a process that is terminated without a fault does not close: %v", err)
		}
		cancel()
	}
	d.started = nil
}

// settle waits until all processes and their resources are gone.
func (d *driver) settle() error {
	deadline := time.Now().Add(slow)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := d.left()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

func (d *driver) left() error {
	if wrong := fault.Wrong(); len(wrong) > 0 {
		return violated("%s", strings.Join(wrong, "; "))
	}
	if left := testkit.WithVariable(d.t, markVariable, d.mark); len(left) > 0 {
		return violated("processes are left: %s", strings.Join(left, ", "))
	}
	if zombies := testkit.Zombies(d.t); len(zombies) > 0 {
		return violated("%d zombies", len(zombies))
	}
	if d.kinds == nil {
		return nil
	}
	if more := exceeding(descriptors(), d.kinds); more != "" {
		return violated("descriptors are left: %s", more)
	}
	if owned := fault.Owned(); len(owned) > d.owned {
		return violated("descriptors are not closed: %v", owned)
	}
	if n := goroutines(); n > d.goroutines {
		return violated("%d goroutines are left, of %d", n-d.goroutines, n)
	}
	if n := d.countGroups(); n > d.groups {
		return violated("%d control groups are left", n-d.groups)
	}
	return nil
}

// explain accepts the current resources as the normal ones.
func (d *driver) explain() {
	for _, pid := range testkit.WithVariable(d.t, markVariable, d.mark) {
		number, _, _ := strings.Cut(pid, " ")
		n, _ := strconv.Atoi(number)
		_ = syscall.Kill(n, syscall.SIGKILL)
	}
	d.kinds, d.owned, d.goroutines, d.groups = descriptors(), len(fault.Owned()), goroutines(), d.countGroups()
}

// descriptors counts the open descriptors by kind.
func descriptors() map[string]int {
	kinds := make(map[string]int)
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // that of the directory
		}
		kind, _, _ := strings.Cut(target, ":[")
		kinds[kind]++
	}
	return kinds
}

// exceeding lists the resources of which there are more than normal.
func exceeding(have, want map[string]int) string {
	var more []string
	for _, kind := range slices.Sorted(maps.Keys(have)) {
		if n := have[kind] - want[kind]; n > 0 {
			more = append(more, fmt.Sprintf("%d %s", n, kind))
		}
	}
	return strings.Join(more, ", ")
}

// goroutines counts all goroutines but those that start processes, which stay.
func goroutines() int {
	n := 0
	for stack := range strings.SplitSeq(testkit.Stacks(), "\n\n") {
		if !strings.Contains(stack, "process.(*forkThread).run") && !strings.Contains(stack, "process.watchStrays") {
			n++
		}
	}
	return n
}

func (d *driver) countGroups() (n int) {
	if d.group == "" {
		return 0
	}
	_ = filepath.WalkDir(d.group, func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			n++
		}
		return nil
	})
	return n
}
