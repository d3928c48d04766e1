package guestlink

import (
	"encoding/binary"
	"testing"
)

func dataFrame(stream uint32, n int) []byte {
	b := make([]byte, frameHeaderSize+n)
	b[0], b[1], b[2], b[3] = byte(n>>16), byte(n>>8), byte(n), frameData
	binary.BigEndian.PutUint32(b[5:], stream)
	return b
}

func newSent() *sent {
	return &sent{preface: len(http2Preface), balance: map[uint32]int64{}}
}

// What is given back is as much as was sent, in whatever pieces that was written.
func TestSentIsGivenBack(t *testing.T) {
	for _, piece := range []int{1, 5, 1 << 20} {
		w := newSent()
		wire := concat([]byte(http2Preface), dataFrame(1, 5000), h2frame(tHeaders, 4, 3, okHeaders), dataFrame(3, 0), dataFrame(3, 70_000), dataFrame(1, 9))
		for b := wire; len(b) > 0; b = b[min(piece, len(b)):] {
			w.note(b[:min(piece, len(b))])
		}
		if w.balance[1] != -5009 || w.balance[3] != -70_000 {
			t.Errorf("in pieces of %d: %v", piece, w.balance)
		}
		if !w.grant(1, 5009) || !w.grant(3, 70_000) || w.balance[1] != 0 || w.balance[3] != 0 {
			t.Errorf("in pieces of %d, given back: %v", piece, w.balance)
		}
	}
}

// However much was sent on other streams, one gets no window that the client cannot hold, and
// what is remembered stays small.
func TestWindowsAreOfOneStream(t *testing.T) {
	w := newSent()
	w.preface = 0
	body := dataFrame(1, 1<<20)
	granted := int64(0)
	for stream := uint32(1); stream < 3*8192; stream += 2 {
		binary.BigEndian.PutUint32(body[5:], stream+2)
		w.note(body)
		if w.grant(1, 1<<20) { // what the other stream was sent
			granted += 1 << 20
		}
		if len(w.balance) > maxBalances+1 {
			t.Fatalf("%d streams are remembered", len(w.balance))
		}
	}
	if granted > windowSlack {
		t.Errorf("one stream was granted %d bytes", granted)
	}
	// Small grants to streams that were sent nothing end the connection before they cost memory.
	w = newSent()
	for stream := uint32(1); w.grant(stream, 1); stream += 2 {
		if stream > 4*maxBalances {
			t.Fatal("any number of streams is remembered")
		}
	}
}
