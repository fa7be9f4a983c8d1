package rpc

import "sync"

// Lanes keeps requests that concern one thing (a process, say) in their order
// of arrival while everything else goes on. Each key has a lane of its own; a
// goroutine runs a lane's jobs one after another and exists only while there
// are any.
//
// Submit is called by one goroutine, the connection's reader.
type Lanes struct {
	mu    sync.Mutex // guards lanes and the fields of every Lane
	lanes map[string]*Lane
	wg    sync.WaitGroup
}

// Lane is the lane a job runs in; see [Lane.Wait].
type Lane struct {
	owner   *Lanes
	jobs    []job
	urgent  int  // how many of jobs are
	waiting bool // the running job is in Wait
}

type job struct {
	run    func(*Lane)
	urgent bool
}

// Submit runs run after all jobs submitted before under the same key. An urgent
// job overtakes others only while the running one is in Wait; it must not block
// and gets no lane then. When nothing keeps a quick job from running at once,
// Submit runs it itself, so it must not block then; otherwise a goroutine does.
func (l *Lanes) Submit(key string, urgent, quick bool, run func(*Lane)) {
	l.mu.Lock()
	lane := l.lanes[key]
	if lane == nil && quick || lane != nil && lane.waiting && urgent {
		l.mu.Unlock()
		run(nil)
		return
	}
	if lane == nil {
		lane = &Lane{owner: l}
		if l.lanes == nil {
			l.lanes = make(map[string]*Lane)
		}
		l.lanes[key] = lane
		l.wg.Go(func() { lane.drain(key) })
	}
	lane.jobs = append(lane.jobs, job{run, urgent})
	if urgent {
		lane.urgent++
	}
	l.mu.Unlock()
}

// WaitIdle waits until no lane has a job.
func (l *Lanes) WaitIdle() { l.wg.Wait() }

// drain runs the jobs of a lane until there are none.
func (lane *Lane) drain(key string) {
	l := lane.owner
	for {
		l.mu.Lock()
		if len(lane.jobs) == 0 {
			delete(l.lanes, key)
			l.mu.Unlock()
			return
		}
		next := lane.jobs[0]
		lane.jobs[0] = job{}
		lane.jobs = lane.jobs[1:]
		if next.urgent {
			lane.urgent--
		}
		l.mu.Unlock()
		next.run(lane)
	}
}

// Wait is called by a running job around something that may take long: wait
// runs while urgent jobs of the lane overtake. A nil lane just waits.
func (lane *Lane) Wait(wait func()) {
	if lane == nil {
		wait()
		return
	}
	l := lane.owner
	for {
		// Those queued already go first and in order; only then does Submit
		// run urgent jobs by itself.
		l.mu.Lock()
		urgent := lane.takeUrgentLocked()
		if len(urgent) == 0 {
			lane.waiting = true
			l.mu.Unlock()
			break
		}
		l.mu.Unlock()
		for _, j := range urgent {
			j.run(nil)
		}
	}
	defer func() { // wait may panic
		l.mu.Lock()
		defer l.mu.Unlock()
		lane.waiting = false
	}()
	wait()
}

func (lane *Lane) takeUrgentLocked() (urgent []job) {
	if lane.urgent == 0 {
		return nil
	}
	lane.urgent = 0
	rest := lane.jobs[:0:0]
	for _, j := range lane.jobs {
		if j.urgent {
			urgent = append(urgent, j)
		} else {
			rest = append(rest, j)
		}
	}
	lane.jobs = rest
	return urgent
}
