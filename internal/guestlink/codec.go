package guestlink

import (
	"bytes"
	"io"
	"sync"
)

// The escape byte and what may follow it. 0xF5 occurs in no UTF-8 text, so text
// passes at the speed of a copy.
const (
	esc        = 0xF5
	escLiteral = 0x00
	escControl = 0x01
)

// appendEscaped appends src to dst as it goes on the wire.
func appendEscaped(dst, src []byte) []byte {
	for {
		i := bytes.IndexByte(src, esc)
		if i < 0 {
			return append(dst, src...)
		}
		dst = append(dst, src[:i+1]...)
		dst = append(dst, escLiteral)
		src = src[i+1:]
	}
}

// encoded holds buffers for what has an E in it. They fit a chunk of evenly distributed
// bytes, four times over.
var encoded = sync.Pool{New: func() any { b := make([]byte, 0, writeChunk+writeChunk/64); return &b }}

// writeEscaped writes p as it goes on the wire, in one call of w.Write unless more than
// one byte in 64 is an E. It returns how many bytes went out, encoded.
func writeEscaped(w io.Writer, p []byte) (sent int, err error) {
	if bytes.IndexByte(p, esc) < 0 {
		return w.Write(p)
	}
	b := encoded.Get().(*[]byte)
	defer encoded.Put(b)
	for len(p) > 0 && err == nil {
		piece := p
		for len(piece)+bytes.Count(piece, []byte{esc}) > cap(*b) {
			piece = piece[:len(piece)/2]
		}
		p = p[len(piece):]
		var n int
		n, err = w.Write(appendEscaped((*b)[:0], piece))
		sent += n
	}
	return sent, err
}

// event is what made decoder.step stop.
type event uint8

const (
	evNone    event = iota // all bytes are used up
	evControl              // decoder.msg holds a whole control message
	evBroken               // the stream was cut or damaged here: what follows is dropped up to the next control message
)

// mode is what a decoder makes of the next byte.
type mode uint8

const (
	modeSkip    mode = iota // drop it: no control message has been seen since the cut
	modeData                // deliver it
	modeControl             // collect it
)

// decoder takes the wire apart. Its zero value drops everything up to the first
// control message. It holds no more than one control message.
type decoder struct {
	mode mode
	esc  bool // the byte before was an unanswered E
	n    int  // bytes of raw collected, in modeControl
	raw  [controlSize]byte
	msg  control // the last whole message, after evControl
}

// step decodes from p until p is used up or something happens. data is what it
// decoded, in place at the start of p; rest is what is left to decode. The event
// comes after data.
func (d *decoder) step(p []byte) (data, rest []byte, ev event) {
	w, r := 0, 0 // w <= r: decoding never grows
	for r < len(p) && ev == evNone {
		c := p[r]
		switch {
		case d.esc:
			r++
			if c == escLiteral && d.mode == modeData {
				p[w] = esc
				w++
			}
			ev = d.escaped(c)
		case c == esc:
			r++
			d.esc = true
		case d.mode == modeControl:
			r++
			ev = d.collect(c)
		default:
			run := p[r:]
			if i := bytes.IndexByte(run, esc); i > 0 {
				run = run[:i]
			}
			if d.mode == modeData {
				if w != r {
					copy(p[w:], run)
				}
				w += len(run)
			}
			r += len(run)
		}
	}
	return p[:w], p[r:], ev
}

// escaped takes the byte after an E. Of a literal in data the caller has taken care.
func (d *decoder) escaped(c byte) event {
	if c == esc {
		return evNone
	}
	d.esc = false
	switch {
	case c == escControl:
		d.mode, d.n = modeControl, 0
	case c == escLiteral && d.mode == modeControl:
		return d.collect(esc)
	case c != escLiteral && d.mode != modeSkip:
		d.mode = modeSkip
		return evBroken
	}
	return evNone
}

// collect takes one byte of a control message.
func (d *decoder) collect(c byte) event {
	d.raw[d.n] = c
	d.n++
	if d.n < len(d.raw) {
		return evNone
	}
	var ok bool
	if d.msg, ok = parseControl(d.raw); !ok {
		d.mode = modeSkip
		return evBroken
	}
	d.mode = modeData
	return evControl
}
