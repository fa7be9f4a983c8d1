package output

import "container/heap"

// byAge is a queue of logs, the oldest one first. The zero value is empty.
type byAge struct {
	logs   []agedLog
	places map[*Log]int // where in logs
}

type agedLog struct {
	log *Log
	age uint64 // the less, the older
}

// put adds a log that is not in the queue.
func (q *byAge) put(l *Log, age uint64) { heap.Push(q, agedLog{l, age}) }

// pop removes and returns the oldest log; nil if the queue is empty.
func (q *byAge) pop() (l *Log, age uint64) {
	if len(q.logs) == 0 {
		return nil, 0
	}
	oldest := heap.Pop(q).(agedLog)
	return oldest.log, oldest.age
}

// remove removes a log from the queue if it is there.
func (q *byAge) remove(l *Log) {
	if i, ok := q.places[l]; ok {
		heap.Remove(q, i)
	}
}

// Len implements heap.Interface, as do the methods below.
func (q *byAge) Len() int { return len(q.logs) }

func (q *byAge) Less(i, j int) bool { return q.logs[i].age < q.logs[j].age }

func (q *byAge) Swap(i, j int) {
	q.logs[i], q.logs[j] = q.logs[j], q.logs[i]
	q.places[q.logs[i].log], q.places[q.logs[j].log] = i, j
}

func (q *byAge) Push(x any) {
	if q.places == nil {
		q.places = make(map[*Log]int)
	}
	added := x.(agedLog)
	q.places[added.log] = len(q.logs)
	q.logs = append(q.logs, added)
}

func (q *byAge) Pop() any {
	n := len(q.logs) - 1
	last := q.logs[n]
	q.logs[n] = agedLog{}
	q.logs = q.logs[:n]
	delete(q.places, last.log)
	return last
}
