package egress

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch/internal/link"
)

// maxRecent bounds the destinations remembered of a sandbox: enough to see what it
// wants, and an answer with all of them fits a message.
const maxRecent = 64

// Counts counts attempts by protocol.
type Counts struct {
	TCP   uint64 `json:"tcp"`
	UDP   uint64 `json:"udp"`
	ICMP  uint64 `json:"icmp"`
	Other uint64 `json:"other"`
}

// Refusal is a destination that a sandbox was refused.
type Refusal struct {
	Proto link.Proto     `json:"proto"`
	Dst   netip.AddrPort `json:"dst"` // port 0 where there are no ports
	First time.Time      `json:"first"`
	Last  time.Time      `json:"last"`
	Count uint64         `json:"count"`
}

// audit is what is remembered of one sandbox's attempts. A guest chooses what is
// written here, so its size does not depend on it.
type audit struct {
	mu        sync.Mutex
	counts    Counts
	recent    []Refusal // at most maxRecent, in no order
	forgotten uint64    // destinations that made room for later ones
}

// note counts a refusal.
func (a *audit) note(f link.Flow, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch f.Proto {
	case link.TCP:
		a.counts.TCP++
	case link.UDP:
		a.counts.UDP++
	case link.ICMP:
		a.counts.ICMP++
	default:
		a.counts.Other++
	}
	for i := range a.recent {
		if r := &a.recent[i]; r.Dst == f.Dst && r.Proto == f.Proto {
			r.Count++
			r.Last = now
			return
		}
	}
	r := Refusal{Proto: f.Proto, Dst: f.Dst, First: now, Last: now, Count: 1}
	if len(a.recent) < maxRecent {
		a.recent = append(a.recent, r)
		return
	}
	oldest := 0
	for i := range a.recent {
		if a.recent[i].Last.Before(a.recent[oldest].Last) {
			oldest = i
		}
	}
	a.recent[oldest] = r
	a.forgotten++
}

// snapshot returns what is remembered, the latest first.
func (a *audit) snapshot() (Counts, []Refusal, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	recent := slices.Clone(a.recent)
	slices.SortStableFunc(recent, func(x, y Refusal) int { return y.Last.Compare(x.Last) })
	return a.counts, recent, a.forgotten
}

// take begins with what b remembers.
func (a *audit) take(b *audit) {
	counts, recent, forgotten := b.snapshot()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts.TCP += counts.TCP
	a.counts.UDP += counts.UDP
	a.counts.ICMP += counts.ICMP
	a.counts.Other += counts.Other
	a.forgotten += forgotten
	for _, r := range recent {
		if len(a.recent) == maxRecent {
			a.forgotten++
			continue
		}
		a.recent = append(a.recent, r)
	}
}
