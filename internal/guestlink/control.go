package guestlink

import "crypto/rand"

// Version of the link layer, in every control message. The guest acknowledges with
// the lower of its own and the node's; the node refuses what it does not know.
const version = 1

// kind says what a control message is.
type kind uint8

const (
	kindHello kind = 1 // node to guest: a session with this nonce begins
	kindAck   kind = 2 // guest to node: it has begun; the session's bytes follow
	kindEnd   kind = 3 // either way: the sender has ended the session with this nonce
)

// nonce names a session. 128 random bits: no two sessions in the life of a snapshot
// and all its clones share one.
type nonce [16]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // it never fails: it would end the program
	return n
}

const controlSize = 2 + len(nonce{})

// control is a control message.
type control struct {
	kind    kind
	version uint8
	nonce   nonce
}

// wire is m as it goes on the wire.
func (m control) wire() []byte {
	raw := append([]byte{byte(m.kind), m.version}, m.nonce[:]...)
	return appendEscaped([]byte{esc, escControl}, raw)
}

// parseControl reports whether raw is a control message.
func parseControl(raw [controlSize]byte) (m control, ok bool) {
	m = control{kind: kind(raw[0]), version: raw[1], nonce: nonce(raw[2:])}
	return m, m.kind >= kindHello && m.kind <= kindEnd && m.version != 0
}
