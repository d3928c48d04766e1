package duplex

// ring is a queue of bytes that takes memory as it fills, and none while it is empty.
type ring struct {
	b     []byte
	start int // of the first byte in b
	n     int // bytes in it
}

const minRing = 4 << 10

func (r *ring) len() int { return r.n }

func (r *ring) write(p []byte) {
	if need := r.n + len(p); need > len(r.b) {
		size := max(minRing, len(r.b))
		for size < need {
			size *= 2
		}
		grown := make([]byte, size)
		r.peek(grown)
		r.b, r.start = grown, 0
	}
	for len(p) > 0 {
		at := (r.start + r.n) % len(r.b)
		k := copy(r.b[at:min(len(r.b), at+len(r.b)-r.n)], p)
		r.n += k
		p = p[k:]
	}
}

func (r *ring) read(p []byte) int {
	n := r.peek(p)
	r.n -= n
	if r.n == 0 {
		*r = ring{}
		return n
	}
	r.start = (r.start + n) % len(r.b)
	return n
}

// peek copies what there is, and fits p, without taking it.
func (r *ring) peek(p []byte) int {
	if r.n == 0 {
		return 0
	}
	p = p[:min(len(p), r.n)]
	k := copy(p, r.b[r.start:])
	return k + copy(p[k:], r.b)
}
