package server

import "container/list"

// arrivals are waiting connections of one kind, grouped by source, in order of arrival.
type arrivals[T any] struct {
	bySource map[string]*list.List // of arrival[T]
	count    int
}

// arrival is the place of one connection.
type arrival[T any] struct {
	of     T
	source string
}

// add appends a connection to those of a source.
func (a *arrivals[T]) add(source string, one T) *list.Element {
	return a.from(source).PushBack(arrival[T]{one, source})
}

// addFirst inserts a connection before those of a source.
func (a *arrivals[T]) addFirst(source string, one T) *list.Element {
	return a.from(source).PushFront(arrival[T]{one, source})
}

// from returns the list of a source, to add a connection.
func (a *arrivals[T]) from(source string) *list.List {
	if a.bySource == nil {
		a.bySource = make(map[string]*list.List)
	}
	if a.bySource[source] == nil {
		a.bySource[source] = list.New()
	}
	a.count++
	return a.bySource[source]
}

// remove removes a connection.
func (a *arrivals[T]) remove(place *list.Element) {
	source := place.Value.(arrival[T]).source
	if from := a.bySource[source]; from.Remove(place) != nil && from.Len() == 0 {
		delete(a.bySource, source)
	}
	a.count--
}

// most yields the connections of the source that has most, the one that has waited
// longest first.
func (a *arrivals[T]) most(yield func(T) bool) {
	var most *list.List
	for _, from := range a.bySource {
		if most == nil || from.Len() > most.Len() {
			most = from
		}
	}
	if most == nil {
		return
	}
	for place := most.Front(); place != nil; place = place.Next() {
		if !yield(place.Value.(arrival[T]).of) {
			return
		}
	}
}
