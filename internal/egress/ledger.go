package egress

import (
	"crypto/rand"
	"net/netip"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/flow"
)

// Bounds of what is kept until it is read. An entry has up to a kilobyte or so.
const (
	maxEntries = 16384 // of all sandboxes together
	maxOfOne   = 512   // of a sandbox
	auditPage  = 64    // in one answer, which fits a message
	// maxReason bounds an entry's reason, which may quote a rule's label.
	maxReason = 512
	// coalesced is how many of a sandbox's latest entries are looked through for one that says the
	// same.
	coalesced = 16
)

// Entry is one line of the audit.
type Entry struct {
	Seq     uint64          `json:"seq"`
	Sandbox hutch.SandboxID `json:"sandbox"`
	Time    time.Time       `json:"time"`             // of the latest of Count
	Count   uint64          `json:"count"`            // how often the same was denied, in a row
	Proto   string          `json:"proto"`            // tls, http, tcp, dns, udp, icmp, …
	Name    string          `json:"name,omitempty"`   // of the host, if it is known
	Addr    netip.Addr      `json:"addr,omitzero"`    // of the server
	Port    uint16          `json:"port,omitempty"`   // 0 where there is none
	Action  string          `json:"action"`           // allow or deny
	Rule    string          `json:"rule"`             // what decided
	Reason  string          `json:"reason,omitempty"` // a sentence: why it was denied, or failed
	Out     uint64          `json:"out,omitempty"`    // bytes that left
	In      uint64          `json:"in,omitempty"`     // bytes that came
	Took    time.Duration   `json:"took,omitempty"`   // nanoseconds from first packet to end
}

// Cursor is a place in the audit. The zero Cursor is its beginning.
type Cursor struct {
	Gateway string `json:"gateway,omitempty"` // which process it is of
	Seq     uint64 `json:"seq,omitempty"`
}

// AuditPage is some entries in order.
type AuditPage struct {
	Entries []Entry `json:"entries"`
	Next    Cursor  `json:"next"`           // to go on with
	More    bool    `json:"more,omitempty"` // there are more just now
	// Lost is how many entries of this process made room for others before they were read.
	Lost uint64 `json:"lost,omitempty"`
	// Anew is that the cursor was of another process: what that had and was not read is lost, and
	// nobody knows how much it was.
	Anew bool `json:"anew,omitempty"`
}

// ledger keeps the audit until it is read. What a sandbox writes makes room for itself first, so
// that one that floods it loses its own.
type ledger struct {
	gateway string

	mu     sync.Mutex
	seq    uint64 // the latest
	given  uint64 // the latest that was read, if not yet acknowledged
	read   uint64 // the latest that was acknowledged
	total  int
	lost   uint64
	lostBy map[hutch.SandboxID]uint64
	// doubt is what was dropped after it was given and before that was acknowledged.
	doubt map[hutch.SandboxID]uint64
	by    map[hutch.SandboxID][]Entry // in order; an empty one is not kept
}

func newLedger() *ledger {
	return &ledger{gateway: rand.Text(), lostBy: map[hutch.SandboxID]uint64{}, doubt: map[hutch.SandboxID]uint64{}, by: map[hutch.SandboxID][]Entry{}}
}

// add writes what a sandbox was allowed or denied.
func (l *ledger) add(sandbox hutch.SandboxID, ev flow.Event) {
	e := Entry{
		Sandbox: sandbox, Time: ev.Time, Count: 1, Proto: ev.Proto, Name: ev.Name, Addr: ev.Addr, Port: ev.Port,
		Action: string(ev.Action), Rule: ev.Rule, Reason: ev.Reason[:min(len(ev.Reason), maxReason)], Out: ev.Out, In: ev.In, Took: ev.Took,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.by[sandbox]
	for i := len(all) - 1; i >= max(0, len(all)-coalesced); i-- {
		if same(all[i], e) && all[i].Seq > l.given {
			all[i].Count++
			all[i].Time = e.Time
			return
		}
	}
	if len(all) >= maxOfOne {
		l.dropLocked(sandbox)
	} else if l.total >= maxEntries {
		l.dropLocked(l.largestLocked())
	}
	l.seq++
	e.Seq = l.seq
	l.by[sandbox] = append(l.by[sandbox], e)
	l.total++
}

// same reports whether two entries say the same of denials, of which nothing is lost if they are
// counted.
func same(a, b Entry) bool {
	return a.Action == "deny" && b.Action == "deny" && a.Out+a.In+b.Out+b.In == 0 &&
		a.Proto == b.Proto && a.Name == b.Name && a.Addr == b.Addr && a.Port == b.Port && a.Rule == b.Rule && a.Reason == b.Reason
}

// dropLocked drops a sandbox's oldest entry, which was not read.
func (l *ledger) dropLocked(sandbox hutch.SandboxID) {
	all := l.by[sandbox]
	if n := all[0].Count; all[0].Seq > l.given {
		l.loseLocked(sandbox, n)
	} else {
		l.doubt[sandbox] += n
	}
	l.keepLocked(sandbox, all[1:])
	l.total--
}

func (l *ledger) loseLocked(sandbox hutch.SandboxID, n uint64) {
	l.lost += n
	if len(l.lostBy) < MaxLinks || l.lostBy[sandbox] > 0 {
		l.lostBy[sandbox] += n
	}
}

// settleLocked settles what is in doubt: it was read, if the reader goes on behind what it was
// given, and else it is lost.
func (l *ledger) settleLocked(acknowledged uint64) {
	if acknowledged < l.given {
		for sandbox, n := range l.doubt {
			l.loseLocked(sandbox, n)
		}
	}
	clear(l.doubt)
}

func (l *ledger) keepLocked(sandbox hutch.SandboxID, rest []Entry) {
	if len(rest) == 0 {
		delete(l.by, sandbox)
	} else {
		l.by[sandbox] = rest
	}
}

func (l *ledger) largestLocked() hutch.SandboxID {
	var largest hutch.SandboxID
	for s, all := range l.by {
		if largest == "" || len(all) > len(l.by[largest]) {
			largest = s
		}
	}
	return largest
}

// page returns up to limit entries after a cursor, and forgets those up to it.
func (l *ledger) page(after Cursor, limit int) AuditPage {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := AuditPage{Entries: []Entry{}, Next: Cursor{l.gateway, after.Seq}}
	if after.Gateway != l.gateway {
		p.Anew = after.Gateway != ""
		p.Next.Seq = l.read
	}
	p.Next.Seq = min(max(p.Next.Seq, l.read), l.seq)
	l.settleLocked(p.Next.Seq)
	l.forgetLocked(p.Next.Seq)
	p.Lost = l.lost
	for _, all := range l.by {
		p.Entries = append(p.Entries, all...)
	}
	slices.SortFunc(p.Entries, func(a, b Entry) int { return int(a.Seq) - int(b.Seq) })
	if p.More = len(p.Entries) > limit; p.More {
		p.Entries = slices.Clone(p.Entries[:limit])
	}
	if n := len(p.Entries); n > 0 {
		p.Next.Seq = p.Entries[n-1].Seq
		l.given = max(l.given, p.Next.Seq)
	}
	return p
}

// forgetLocked drops what was read.
func (l *ledger) forgetLocked(seq uint64) {
	if seq <= l.read {
		return
	}
	l.read = seq
	for s, all := range l.by {
		i := 0
		for i < len(all) && all[i].Seq <= seq {
			i++
		}
		l.total -= i
		l.keepLocked(s, slices.Clone(all[i:]))
	}
}

// forget drops what was lost of a sandbox that is detached; its entries stay until they are read.
func (l *ledger) forget(sandbox hutch.SandboxID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lostBy, sandbox)
}

// lostOf is how many entries of a sandbox made room before they were read.
func (l *ledger) lostOf(sandbox hutch.SandboxID) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lostBy[sandbox]
}
