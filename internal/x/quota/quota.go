// Package quota counts what is under way for each of many, and says when one has too much.
//
// It owns the counts and nothing else: who is over the limit decides what to do. Names with
// nothing under way cost nothing.
//
// Start with [New].
package quota

import "sync"

// Quota bounds how many uses of each key are under way at once. It is safe for concurrent
// use.
type Quota[K comparable] struct {
	max int

	mu sync.Mutex
	n  map[K]int
}

// New returns a Quota of so many uses for each key.
func New[K comparable](max int) *Quota[K] { return &Quota[K]{max: max, n: map[K]int{}} }

// Enter begins a use of k and returns what ends it, which does nothing when called again;
// false if k has as many as it may.
func (q *Quota[K]) Enter(k K) (leave func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n[k] >= q.max {
		return nil, false
	}
	q.n[k]++
	return sync.OnceFunc(func() { q.leave(k) }), true
}

func (q *Quota[K]) leave(k K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n[k]--; q.n[k] == 0 {
		delete(q.n, k)
	}
}
