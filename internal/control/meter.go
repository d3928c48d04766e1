package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
)

const (
	// keptFor is how far back samples go.
	keptFor = time.Hour
	// diskEvery is how often a running sandbox is asked how full its disk is: the guest
	// measures it, so it costs a call.
	diskEvery = 30 * time.Second
	// diskSeldom is the same for one that has hardly run since, diskQuiet of CPU time or less:
	// its own kernel and agent, and the last question, take that much. Hundreds that do nothing
	// are not to keep a machine busy with saying so.
	diskSeldom = time.Hour
	diskQuiet  = 30 * time.Millisecond
	// shortWindow is too short to say how much of a CPU was used: the kernel books its time
	// in ticks of milliseconds.
	shortWindow = 500 * time.Millisecond
	// diskAtOnce is how many of them are asked at once.
	diskAtOnce = 4
)

// meter keeps the samples of every sandbox that runs.
type meter struct {
	mu     sync.Mutex
	series map[hutch.SandboxID]*series

	asking chan struct{} // tokens: guests being asked for their disk
}

// series is the samples of one sandbox.
type series struct {
	ring []hutch.Sample // at most as many as fit keptFor; next is where the oldest is overwritten
	next int

	at  time.Time // of the last measurement of cpu
	cpu time.Duration

	disk    hutch.DiskUsage // as the guest said last; zero until it did
	askedAt time.Time
	asked   time.Duration // cpu at that time
}

func newMeter() *meter {
	return &meter{series: map[hutch.SandboxID]*series{}, asking: make(chan struct{}, diskAtOnce)}
}

// wants says whether a sample taken now is to be kept: one every so often is.
func (m *meter) wants(id hutch.SandboxID, now time.Time, every time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.series[id]
	return r == nil || now.Sub(r.at) >= every-every/8 // a tick that comes a little early is its tick
}

// add makes a sample whole and keeps it.
func (m *meter) add(id hutch.SandboxID, s hutch.Sample, cpu time.Duration, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.series[id]
	if r == nil {
		r = &series{}
		m.series[id] = r
	}
	r.completeLocked(&s, cpu)
	r.at, r.cpu = s.At, cpu
	if len(r.ring) < most {
		r.ring = append(r.ring, s)
		return
	}
	r.ring[r.next] = s
	r.next = (r.next + 1) % len(r.ring)
}

// complete makes a sample whole that is not kept.
func (m *meter) complete(id hutch.SandboxID, s *hutch.Sample, cpu time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.series[id]
	if r == nil {
		return
	}
	r.completeLocked(s, cpu)
	if len(r.ring) > 0 && s.At.Sub(r.at) < shortWindow {
		s.CPUPercent = r.ring[(r.next+len(r.ring)-1)%len(r.ring)].CPUPercent
	}
}

func (r *series) completeLocked(s *hutch.Sample, cpu time.Duration) {
	if d := s.At.Sub(r.at); !r.at.IsZero() && d > 0 && cpu >= r.cpu {
		s.CPUPercent = 100 * float64(cpu-r.cpu) / float64(d)
	}
	if r.disk.Total > 0 {
		s.Disk, s.DiskMax = r.disk.Used, r.disk.Total
	}
}

// between returns samples, oldest first.
func (m *meter) between(id hutch.SandboxID, from, to time.Time) []hutch.Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.series[id]
	if r == nil {
		return nil
	}
	all := append(slices.Clone(r.ring[r.next:]), r.ring[:r.next]...)
	return slices.DeleteFunc(all, func(s hutch.Sample) bool {
		return (!from.IsZero() && s.At.Before(from)) || (!to.IsZero() && s.At.After(to))
	})
}

// keep forgets every sandbox that is not in alive.
func (m *meter) keep(alive map[hutch.SandboxID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.series, func(id hutch.SandboxID, _ *series) bool { return !alive[id] })
}

// toAsk says whether the sandbox is to be asked for its disk now, and notes that it is.
func (m *meter) toAsk(id hutch.SandboxID, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.series[id]
	if r == nil || now.Sub(r.askedAt) < diskEvery {
		return false
	}
	if r.disk.Total > 0 && r.cpu-r.asked < diskQuiet && now.Sub(r.askedAt) < diskSeldom {
		return false
	}
	r.askedAt, r.asked = now, r.cpu
	return true
}

// told notes what a sandbox answered.
func (m *meter) told(id hutch.SandboxID, u hutch.DiskUsage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.series[id]; r != nil && u.Used >= 0 && u.Total > 0 {
		r.disk = hutch.DiskUsage{Used: min(u.Used, u.Total), Total: u.Total}
	}
}

// sampling measures the living sandboxes until ctx ends.
func (c *Control) sampling(ctx context.Context) {
	t := time.NewTicker(min(c.cfg.UsageEvery, c.cfg.SampleEvery))
	defer t.Stop()
	var listed, written time.Time
	for {
		if now := time.Now(); now.Sub(listed) >= c.cfg.SampleEvery-c.cfg.SampleEvery/8 {
			c.listLiving(ctx, now)
			listed = now
		}
		for _, k := range c.ledger.due(time.Now(), c.activity.lastUse) {
			c.measure(ctx, k)
		}
		c.endOverspent(ctx)
		if now := time.Now(); now.Sub(written) >= flushEvery {
			c.writeUsage(ctx, choice{})
			written = now
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// listLiving finds out which sandboxes there are to measure, and asks some of them for their
// disk. A paused one is not woken to be asked.
func (c *Control) listLiving(ctx context.Context, now time.Time) {
	all, err := c.allAlive(ctx)
	if err != nil {
		return // the sweep, which lists them too, says why
	}
	alive := make(map[hutch.SandboxID]bool, len(all))
	for _, sb := range all {
		alive[sb.ID] = true
		if err := c.account(ctx, sb); err != nil && ctx.Err() == nil {
			c.log.Error("charge", "sandbox", sb.ID, "op", "usage", "error", err)
		}
		if sb.State == hutch.StateRunning && sb.Transition == "" && c.meter.toAsk(sb.ID, time.Now()) {
			c.wg.Go(func() {
				select {
				case c.meter.asking <- struct{}{}:
					defer func() { <-c.meter.asking }()
					c.askDisk(ctx, sb)
				case <-ctx.Done():
				}
			})
		}
	}
	c.meter.keep(alive)
	c.ledger.keep(alive, now)
}

// askDisk asks a guest how full its disk is. It is no use of the sandbox.
func (c *Control) askDisk(ctx context.Context, sb hutch.Sandbox) {
	g, err := c.nodes.Guest(ctx, sb.ID, sb.Epoch)
	if err != nil {
		return
	}
	if u, err := g.DiskUsage(ctx); err == nil {
		c.meter.told(sb.ID, u)
	}
}

// Usage measures a sandbox now. Its CPU use is the average since the last sample.
func (c *Control) Usage(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sample, error) {
	sb, err := c.alive(ctx, p, id)
	if err != nil {
		return hutch.Sample{}, err
	}
	s, cpu, err := c.nodes.Usage(ctx, id, sb.Epoch)
	if err != nil {
		return s, c.explainGone(ctx, p, id, err)
	}
	c.meter.complete(id, &s, cpu)
	return s, nil
}

// Samples returns what was measured of a sandbox within the last hour, oldest first. Zero
// times are no bounds.
func (c *Control) Samples(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, from, to time.Time) ([]hutch.Sample, error) {
	if _, err := c.alive(ctx, p, id); err != nil {
		return nil, err
	}
	return c.meter.between(id, from, to), nil
}
