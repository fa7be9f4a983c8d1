package rpc_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"execserver/internal/rpc"
)

// TestLanesOrder submits many jobs to a few lanes at random.
func TestLanesOrder(t *testing.T) {
	const keys, count = 7, 20_000
	var lanes rpc.Lanes
	var mu sync.Mutex
	ran := make(map[string][]int)
	var busy [keys]atomic.Bool
	for i := range count {
		n := rand.IntN(keys)
		key := fmt.Sprint(n)
		lanes.Submit(key, rpc.Urgency(rand.IntN(2)), func(*rpc.Lane) {
			if busy[n].Swap(true) {
				t.Error("two jobs of one lane at once")
			}
			mu.Lock()
			ran[key] = append(ran[key], i)
			mu.Unlock()
			busy[n].Store(false)
		})
	}
	lanes.WaitIdle()
	total := 0
	for key, jobs := range ran {
		total += len(jobs)
		if !slices.IsSorted(jobs) {
			t.Errorf("the jobs of lane %s ran out of order", key)
		}
	}
	if total != count {
		t.Errorf("%d jobs ran, want %d", total, count)
	}
}

// TestLanesGrowing has every job of a long queue wait, which must not cost more
// the longer the queue is.
func TestLanesGrowing(t *testing.T) {
	const count = 5_000
	var lanes rpc.Lanes
	start := make(chan struct{})
	lanes.Submit("k", rpc.Blocking, func(*rpc.Lane) { <-start })
	for range count {
		lanes.Submit("k", rpc.Blocking, func(lane *rpc.Lane) { lane.Wait(func() {}) })
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	close(start)
	lanes.WaitIdle()
	runtime.ReadMemStats(&after)
	if spent := after.TotalAlloc - before.TotalAlloc; spent > 1000*count {
		t.Errorf("%d bytes allocated for %d jobs", spent, count)
	}
}

func TestNilLane(t *testing.T) {
	var lane *rpc.Lane
	ran := false
	lane.Wait(func() { ran = true })
	if !ran {
		t.Error("a nil lane does not wait")
	}
}

// modelJob is a job of the model test. An urgent one does nothing but run.
type modelJob struct {
	name     string
	key      string
	urgency  rpc.Urgency
	commands chan string // "wait", "go on", "finish"
}

// modelLane is what Lanes promises for one key.
type modelLane struct {
	running *modelJob
	waiting bool
	queue   []*modelJob
}

// lanesModel runs Lanes beside the model in one bubble; jobs do what they are
// told, and every step ends when nothing moves any more.
type lanesModel struct {
	lanes  rpc.Lanes
	model  map[string]*modelLane
	wanted map[string][]string // what should have happened, by key

	mu       sync.Mutex
	happened map[string][]string
	made     int
}

func (m *lanesModel) note(key, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.happened[key] = append(m.happened[key], what)
}

func (m *lanesModel) lane(key string) *modelLane {
	if m.model[key] == nil {
		m.model[key] = new(modelLane)
	}
	return m.model[key]
}

// run is the body of every job.
func (m *lanesModel) run(j *modelJob, lane *rpc.Lane) {
	m.note(j.key, j.name)
	if j.urgency == rpc.Urgent || lane == nil {
		return
	}
	for command := range j.commands {
		switch command {
		case "wait":
			lane.Wait(func() { <-j.commands })
			m.note(j.key, j.name+" goes on")
		case "finish":
			return
		}
	}
}

func (m *lanesModel) submit(key string, urgency rpc.Urgency) {
	m.made++
	j := &modelJob{fmt.Sprintf("job %d urgency %d", m.made, urgency), key, urgency, make(chan string)}
	l := m.lane(key)
	switch {
	case l.running == nil:
		m.wants(key, j.name)
		if urgency == rpc.Blocking {
			l.running = j
		}
	case urgency == rpc.Urgent && l.waiting:
		m.wants(key, j.name)
	default:
		l.queue = append(l.queue, j)
	}
	m.lanes.Submit(key, urgency, func(lane *rpc.Lane) { m.run(j, lane) })
}

func (m *lanesModel) wants(key, what string) { m.wanted[key] = append(m.wanted[key], what) }

func (m *lanesModel) wait(key string) {
	l := m.lane(key)
	if l.running == nil || l.waiting {
		return
	}
	l.waiting = true
	l.queue = slices.DeleteFunc(l.queue, func(j *modelJob) bool {
		if j.urgency == rpc.Urgent {
			m.wants(key, j.name)
		}
		return j.urgency == rpc.Urgent
	})
	l.running.commands <- "wait"
}

func (m *lanesModel) goOn(key string) {
	if l := m.lane(key); l.waiting {
		l.waiting = false
		m.wants(key, l.running.name+" goes on")
		l.running.commands <- "go on"
	}
}

func (m *lanesModel) finish(key string) {
	l := m.lane(key)
	if l.running == nil || l.waiting {
		return
	}
	done := l.running
	l.running = nil
	for len(l.queue) > 0 && l.running == nil {
		next := l.queue[0]
		l.queue = l.queue[1:]
		m.wants(key, next.name)
		if next.urgency != rpc.Urgent {
			l.running = next
		}
	}
	done.commands <- "finish"
}

// step performs one operation and returns how the two differ afterwards.
func (m *lanesModel) step(op int, key string, urgency rpc.Urgency) string {
	switch op {
	case 0, 1, 2:
		m.submit(key, urgency)
	case 3:
		m.wait(key)
	case 4:
		m.goOn(key)
	case 5:
		m.finish(key)
	}
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Diff(m.wanted, m.happened)
}

// drain ends all jobs.
func (m *lanesModel) drain() {
	for key, l := range m.model {
		for l.running != nil {
			m.goOn(key)
			m.finish(key)
			synctest.Wait()
		}
	}
	m.lanes.WaitIdle()
}

func TestLanesModel(t *testing.T) {
	type operation struct {
		op      int
		key     string
		urgency rpc.Urgency
	}
	rapid.Check(t, func(rt *rapid.T) {
		var script []operation
		for range rapid.IntRange(1, 60).Draw(rt, "length") {
			script = append(script, operation{
				rapid.IntRange(0, 5).Draw(rt, "operation"), rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key"),
				rapid.SampledFrom([]rpc.Urgency{rpc.Blocking, rpc.Quick, rpc.Urgent}).Draw(rt, "urgency"),
			})
		}
		var diff string
		synctest.Test(t, func(*testing.T) {
			m := &lanesModel{model: map[string]*modelLane{}, wanted: map[string][]string{}, happened: map[string][]string{}}
			defer m.drain()
			for i, o := range script {
				if diff = m.step(o.op, o.key, o.urgency); diff != "" {
					diff = fmt.Sprintf("after step %d, %+v:\n%s", i, o, diff)
					return
				}
			}
		})
		if diff != "" {
			rt.Fatal(diff)
		}
	})
}
