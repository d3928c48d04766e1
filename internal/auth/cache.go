package auth

import (
	"crypto/sha256"
	"sync"
	"time"

	"hutch.dev/hutch"
)

// MaxStale is how long a key found good is trusted without asking the store, and so how
// long one that another process revokes still works.
const MaxStale = 2 * time.Second

// maxCached bounds the cache: 1,000 keys in use within two seconds, some 300 bytes each.
// More than that only cost a read of the store.
const maxCached = 1000

// cache remembers good keys for a moment, by their hash: the keys themselves are not
// kept in memory.
type cache struct {
	mu    sync.Mutex
	good  map[[sha256.Size]byte]seen // guarded by mu
	drops uint64                     // guarded by mu: how often something was dropped
}

type seen struct {
	key hutch.APIKey
	at  time.Time // when the store was asked
}

func newCache() *cache {
	return &cache{good: make(map[[sha256.Size]byte]seen)}
}

// get returns a fresh key, if there is one, and the count of drops to give to put.
func (c *cache) get(sum [sha256.Size]byte, now time.Time) (key hutch.APIKey, drops uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.good[sum]
	if !ok || !s.fresh(now) {
		return hutch.APIKey{}, c.drops, false
	}
	return s.key, c.drops, true
}

// fresh also says no when the clock went back: then nobody knows how old s is.
func (s seen) fresh(now time.Time) bool {
	age := now.Sub(s.at)
	return age >= 0 && age < MaxStale
}

// put remembers s, unless a key was dropped since get counted drops: it may be this one,
// read from the store just before it was revoked.
func (c *cache) put(sum [sha256.Size]byte, s seen, drops uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drops != drops {
		return
	}
	if _, ok := c.good[sum]; !ok && len(c.good) >= maxCached {
		c.makeRoomLocked(s.at)
	}
	c.good[sum] = s
}

// makeRoomLocked drops what is no longer fresh, else one at random.
func (c *cache) makeRoomLocked(now time.Time) {
	for sum, s := range c.good {
		if !s.fresh(now) {
			delete(c.good, sum)
		}
	}
	for sum := range c.good {
		if len(c.good) < maxCached {
			return
		}
		delete(c.good, sum)
	}
}

// drop forgets the key with that prefix.
func (c *cache) drop(prefix string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drops++
	for sum, s := range c.good {
		if s.key.Prefix == prefix {
			delete(c.good, sum)
		}
	}
}
