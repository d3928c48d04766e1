package output

import (
	"sync"
	"sync/atomic"
)

// chunkSize is the unit streams take memory in: small against the default budget
// of 1 MiB, large enough that a fast writer allocates rarely.
const chunkSize = 16 << 10

// floor is what every stream may hold whatever the pool says, so that a command
// always has some output to show. With the table's cap of 4,096 commands and two
// streams each it bounds what all streams hold beyond the pool.
const floor = chunkSize

// Pool bounds the memory that all streams hold together: Limit bytes, plus at most
// 16 KiB for each stream that has written at all. A stream that gets no more behaves as
// if its budget were used up: it keeps head and tail and its file gets everything.
type Pool struct {
	limit int64
	used  atomic.Int64
	bufs  sync.Pool // *[]byte of chunkSize, for chunks given back
}

// NewPool makes a pool of limit bytes.
func NewPool(limit int64) *Pool {
	return &Pool{limit: limit}
}

// Used is how many bytes the streams hold now.
func (p *Pool) Used() int64 { return p.used.Load() }

// take reserves n bytes; force reserves them even over the limit.
func (p *Pool) take(n int64, force bool) bool {
	if p.used.Add(n) <= p.limit || force {
		return true
	}
	p.used.Add(-n)
	return false
}
