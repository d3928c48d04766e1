package dns

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/time/rate"
)

// StandIns are the addresses that stand for others: a range that is set aside for
// measurements between networks, and in which nothing on the internet is.
var StandIns = netip.MustParsePrefix("198.18.0.0/15")

// Config is what a table of names needs to know. The zero values of numbers are the defaults.
type Config struct {
	Resolver Resolver
	// IPv6 is that the sandbox can reach IPv6 addresses.
	IPv6 bool
	// Inside is the sandbox's own network: what is there it would not ask the gateway for.
	Inside netip.Prefix

	MaxName  int           // bytes of a name; 0 = 128
	MaxNames int           // remembered; 0 = 1024
	Every    time.Duration // between two new names, in the long run; 0 = 1 s
	Burst    int           // new names at once; 0 = 300
	Keep     time.Duration // how long an address is good after it was last given for a name; 0 = 1 h
}

func (c Config) withDefaults() Config {
	if c.MaxName == 0 {
		c.MaxName = 128
	}
	if c.MaxNames == 0 {
		c.MaxNames = 1024
	}
	if c.Every == 0 {
		c.Every = time.Second
	}
	if c.Burst == 0 {
		c.Burst = 300
	}
	if c.Keep == 0 {
		c.Keep = time.Hour
	}
	return c
}

// lookupRate and lookupBurst bound the lookups of a sandbox, of known names too.
const (
	lookupRate  = 20 // a second
	lookupBurst = 100
	// maxPins bounds the addresses of a name: those that were given in Keep.
	maxPins = 64
	// failedFor is how long it is remembered that a name does not exist.
	failedFor = 5 * time.Second
)

// Names is what one sandbox was told of names. It is safe for concurrent use.
type Names struct {
	cfg     Config
	lookups *rate.Limiter
	news    *rate.Limiter

	mu      sync.Mutex
	byName  map[string]*entry
	byAddr  map[netip.Addr][]*entry // addresses as given; entries in no order
	standIn uint32                  // how many were given
}

// entry is one name.
type entry struct {
	name  string
	given []netip.Addr // by the latest answer
	code  dnsmessage.RCode
	fresh time.Time // until when that is answered again
	used  time.Time
	pins  []pin
}

// pin is one address of a name.
type pin struct {
	given, addr netip.Addr // differ for a stand-in
	until       time.Time
}

// Target is what an address means.
type Target struct {
	Name string
	Addr netip.Addr // the true one
}

// New returns an empty table.
func New(cfg Config) *Names {
	cfg = cfg.withDefaults()
	return &Names{
		cfg:     cfg,
		lookups: rate.NewLimiter(lookupRate, lookupBurst),
		news:    rate.NewLimiter(rate.Every(cfg.Every), cfg.Burst),
		byName:  make(map[string]*entry),
		byAddr:  make(map[netip.Addr][]*entry),
	}
}

// Of says which names an address was given for, the latest asked first. An address that was
// given for none has no target.
func (n *Names) Of(given netip.Addr) []Target {
	given = given.Unmap()
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	entries := slices.Clone(n.byAddr[given])
	slices.SortStableFunc(entries, func(a, b *entry) int { return b.used.Compare(a.used) })
	var out []Target
	for _, e := range entries {
		for _, p := range e.pins {
			if p.given == given && now.Before(p.until) {
				out = append(out, Target{e.name, p.addr})
			}
		}
	}
	return out
}

// Len is how many names are remembered.
func (n *Names) Len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.byName)
}

// fresh is what was answered for a name lately.
func (n *Names) fresh(name string) ([]netip.Addr, dnsmessage.RCode, bool) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.byName[name]
	if e == nil || !now.Before(e.fresh) {
		return nil, 0, false
	}
	e.used = now
	for i := range e.pins {
		if slices.Contains(e.given, e.pins[i].given) {
			e.pins[i].until = now.Add(n.cfg.Keep)
		}
	}
	return e.given, e.code, true
}

// mayLookUp counts a lookup, and reports whether it is within the limits.
func (n *Names) mayLookUp(name string) bool {
	n.mu.Lock()
	known := n.byName[name] != nil
	n.mu.Unlock()
	return n.lookups.Allow() && (known || n.news.Allow())
}

// pin remembers what a name was resolved to, and returns the addresses to be given for it.
func (n *Names) pin(name string, addrs []netip.Addr) []netip.Addr {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.entryLocked(name, now)
	e.given, e.code, e.fresh = nil, dnsmessage.RCodeSuccess, now.Add(ttl*time.Second)
	four := slices.ContainsFunc(addrs, netip.Addr.Is4)
	for _, a := range addrs {
		if a.Is6() && !n.cfg.IPv6 && four {
			continue
		}
		given := n.givenLocked(e, a)
		e.given = append(e.given, given)
		n.holdLocked(e, pin{given, a, now.Add(n.cfg.Keep)})
	}
	for len(e.pins) > maxPins {
		n.dropLocked(e, 0)
	}
	return slices.Clone(e.given)
}

// failed remembers that a name does not exist.
func (n *Names) failed(name string, code dnsmessage.RCode) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.entryLocked(name, now)
	e.given, e.code, e.fresh = nil, code, now.Add(failedFor)
}

func (n *Names) entryLocked(name string, now time.Time) *entry {
	e := n.byName[name]
	if e == nil {
		if len(n.byName) >= n.cfg.MaxNames {
			n.forgetOldestLocked()
		}
		e = &entry{name: name}
		n.byName[name] = e
	}
	e.used = now
	return e
}

func (n *Names) forgetOldestLocked() {
	var oldest *entry
	for _, e := range n.byName {
		if oldest == nil || e.used.Before(oldest.used) {
			oldest = e
		}
	}
	for len(oldest.pins) > 0 {
		n.dropLocked(oldest, 0)
	}
	delete(n.byName, oldest.name)
}

// holdLocked adds a pin, or renews it; the oldest stay first.
func (n *Names) holdLocked(e *entry, p pin) {
	if i := slices.IndexFunc(e.pins, func(q pin) bool { return q.given == p.given }); i >= 0 {
		e.pins = slices.Delete(e.pins, i, i+1)
	} else {
		n.byAddr[p.given] = append(n.byAddr[p.given], e)
	}
	e.pins = append(e.pins, p)
}

// dropLocked forgets a pin.
func (n *Names) dropLocked(e *entry, i int) {
	given := e.pins[i].given
	e.pins = slices.Delete(e.pins, i, i+1)
	rest := slices.DeleteFunc(n.byAddr[given], func(o *entry) bool { return o == e })
	if len(rest) == 0 {
		delete(n.byAddr, given)
	} else {
		n.byAddr[given] = rest
	}
}

// givenLocked is the address that is given for a: itself, or a stand-in if the sandbox could not
// reach it.
func (n *Names) givenLocked(e *entry, a netip.Addr) netip.Addr {
	routed := !a.IsLoopback() && !a.IsUnspecified() && (a.Is4() || n.cfg.IPv6) && !n.cfg.Inside.Contains(a) && !StandIns.Contains(a) &&
		(a.Is6() || a.As4()[0] != 0)
	if routed {
		return a
	}
	for _, p := range e.pins {
		if p.addr == a {
			return p.given
		}
	}
	size := uint32(1) << (32 - StandIns.Bits())
	for {
		n.standIn = n.standIn%(size-2) + 1
		b := StandIns.Addr().As4()
		low := n.standIn
		given := netip.AddrFrom4([4]byte{b[0], b[1] | byte(low>>16), byte(low >> 8), byte(low)})
		if n.byAddr[given] == nil { // there are fewer pins than addresses
			return given
		}
	}
}
