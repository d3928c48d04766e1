package link

import "sync"

// gate counts the flows that are being served and bounds them. A sync.WaitGroup does not
// do: flows begin on goroutines of the stack, perhaps while the link already ends.
type gate struct {
	max int

	mu   sync.Mutex
	n    int
	idle chan struct{} // once shut: closed when n is 0
}

// enter begins a flow, unless there are too many or the gate is shut.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil || g.n >= g.max {
		return false
	}
	g.n++
	return true
}

func (g *gate) full() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n >= g.max
}

// leave ends a flow.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.n == 0 && g.idle != nil {
		close(g.idle)
	}
}

// shut lets no flow begin any more. It must be called once, before wait.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle = make(chan struct{})
	if g.n == 0 {
		close(g.idle)
	}
}

// wait returns once every flow has ended.
func (g *gate) wait() { <-g.idle }
