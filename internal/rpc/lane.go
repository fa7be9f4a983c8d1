package rpc

import "sync"

// Lanes keeps requests about one thing, such as a process, in their order of arrival,
// while all others proceed. Each key has a lane of its own. A goroutine runs the jobs of
// a lane one after another, and exists only while the lane has jobs.
//
// Only one goroutine, the connection's reader, calls Submit.
type Lanes struct {
	mu    sync.Mutex // guards lanes and the fields of every Lane
	lanes map[string]*Lane
	wg    sync.WaitGroup
}

// Lane is the lane in which a job runs; see [Lane.Wait].
type Lane struct {
	owner   *Lanes
	jobs    []job
	urgent  int  // number of urgent jobs among jobs
	waiting bool // the running job is in Wait
}

type job struct {
	run    func(*Lane)
	urgent bool
}

// Urgency is whether a job may block, and whether it waits for earlier ones.
type Urgency int

const (
	// Blocking jobs may block. A goroutine runs them.
	Blocking Urgency = iota
	// Quick jobs are run by Submit itself if the lane is empty, so they must not block then.
	// Otherwise they are queued like any other.
	Quick
	// Urgent jobs are quick, and never block. While the running job is in Wait, they run at
	// once, on the goroutine that submits them and with a nil Lane.
	Urgent
)

// Submit runs run after all jobs submitted before under the same key, except those that
// an urgent job overtakes.
func (l *Lanes) Submit(key string, urgency Urgency, run func(*Lane)) {
	quick, urgent := urgency >= Quick, urgency == Urgent
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
		l.wg.Go(func() { lane.run(key) })
	}
	lane.jobs = append(lane.jobs, job{run, urgent})
	if urgent {
		lane.urgent++
	}
	l.mu.Unlock()
}

// WaitIdle waits until no lane has a job.
func (l *Lanes) WaitIdle() { l.wg.Wait() }

// run runs the jobs of a lane until none is left.
func (lane *Lane) run(key string) {
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

// Wait runs step, which may block, and lets urgent jobs of the lane overtake the running job
// meanwhile. With a nil lane, it only runs step.
func (lane *Lane) Wait(step func()) {
	if lane == nil {
		step()
		return
	}
	l := lane.owner
	for {
		// Queued urgent jobs run first and in order. Only then does Submit run urgent
		// jobs itself.
		l.mu.Lock()
		urgent := lane.popUrgentLocked()
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
	defer func() { // step may panic
		l.mu.Lock()
		defer l.mu.Unlock()
		lane.waiting = false
	}()
	step()
}

func (lane *Lane) popUrgentLocked() (urgent []job) {
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
