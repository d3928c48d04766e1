package control

import (
	"maps"
	"slices"
	"sync"

	"hutch.dev/hutch"
)

// claims lets one at a time do something about an id. The zero value is ready.
type claims[K comparable] struct {
	mu sync.Mutex
	m  map[K]chan struct{}
}

// take claims id and returns the function that gives it back. If another has it, release
// is nil and the channel is closed when it is given back.
func (c *claims[K]) take(id K) (release func(), taken <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch, ok := c.m[id]; ok {
		return nil, ch
	}
	if c.m == nil {
		c.m = map[K]chan struct{}{}
	}
	ch := make(chan struct{})
	c.m[id] = ch
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.m, id)
		close(ch)
	}, ch
}

// ids returns what is claimed now.
func (c *claims[K]) ids() []K {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.m))
}

// owedEnd is an end that could not be carried out or recorded yet.
type owedEnd struct {
	epoch  hutch.Epoch
	why    hutch.SandboxEnd
	detail string
}

// owed is what a sweep has to make true for each sandbox, because the records could not be
// written or a machine could not be killed. The zero value is ready.
type owed[V any] struct {
	mu sync.Mutex
	m  map[hutch.SandboxID]V
}

// add notes what is owed; what was noted first stays.
func (o *owed[V]) add(id hutch.SandboxID, v V) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil {
		o.m = map[hutch.SandboxID]V{}
	}
	if _, ok := o.m[id]; !ok {
		o.m[id] = v
	}
}

func (o *owed[V]) done(id hutch.SandboxID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.m, id)
}

func (o *owed[V]) all() map[hutch.SandboxID]V {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.m)
}
