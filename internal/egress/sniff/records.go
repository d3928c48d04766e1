package sniff

import "errors"

var errNameChanged = errors.New("the second ClientHello of the TLS handshake is for another host than the first")

// Records follows what a TLS client sends after its first ClientHello. If the server asks for
// another one, that must be for the same host: a server may go by the second. It is pure
// bookkeeping: bytes are only held back while they are part of such a ClientHello.
type Records struct {
	first   Hello
	held    []byte // the beginning of a record that is not known yet, or of a ClientHello
	left    int    // bytes of the current record that pass
	settled bool   // the name can't change any more
}

// NewRecords follows a connection that began with first.
func NewRecords(first Hello) *Records { return &Records{first: first} }

// Settled reports whether all that follows passes.
func (r *Records) Settled() bool { return r.settled }

// Next takes what the client sent and returns what of it, and of what was held, may pass now.
// The result is valid until the next call. After an error nothing may pass any more.
func (r *Records) Next(b []byte) ([]byte, error) {
	if r.settled {
		return b, nil
	}
	if len(r.held) > 0 {
		b = append(r.held, b...)
		r.held = nil
	}
	at := 0
	for at < len(b) && !r.settled {
		if r.left > 0 {
			n := min(r.left, len(b)-at)
			r.left -= n
			at += n
			continue
		}
		size, hold, err := r.record(b[at:])
		if err != nil {
			return nil, err
		}
		if hold {
			r.held = append([]byte(nil), b[at:]...)
			return b[:at], nil
		}
		r.left = size
	}
	if r.settled {
		r.held, r.left = nil, 0
		return b, nil
	}
	return b[:at], nil
}

// record looks at the beginning of a record: it passes with size bytes, or is held until there is
// more of it.
func (r *Records) record(b []byte) (size int, hold bool, err error) {
	switch b[0] {
	case recordChangeCipher, recordAlert:
	case recordData:
		// Encrypted by what was agreed on, unless it is early data, after which the server may still
		// ask for another ClientHello.
		if !r.first.EarlyData {
			r.settled = true
			return 0, false, nil
		}
	case recordHandshake:
		if len(b) <= recordHeader {
			return 0, true, nil
		}
		if b[recordHeader] != typeClientHello {
			r.settled = true // the handshake of TLS 1.2 goes on
			return 0, false, nil
		}
		return r.second(b)
	default:
		r.settled = true // no TLS: the server will say so
		return 0, false, nil
	}
	if len(b) < recordHeader {
		return 0, true, nil
	}
	return recordHeader + int(b[3])<<8 + int(b[4]), false, nil
}

func (r *Records) second(b []byte) (size int, hold bool, err error) {
	h, need, err := ParseHello(b)
	switch {
	case err != nil:
		return 0, false, err
	case need > 0:
		return 0, true, nil
	case h.Name != r.first.Name || h.Encrypted != r.first.Encrypted:
		return 0, false, errNameChanged
	}
	return h.Size, false, nil
}
