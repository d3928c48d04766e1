package sniff

import "errors"

// The types of TLS records, RFC 8446 5.1.
const (
	recordChangeCipher = 20
	recordAlert        = 21
	recordHandshake    = 22
	recordData         = 23
)

const (
	// maxHello bounds a ClientHello. One with post-quantum keys has some 1,800 bytes.
	maxHello = 16 << 10
	// maxRecord is the longest fragment of a record in plain, RFC 8446 5.1.
	maxRecord = 1 << 14
	// maxRecords bounds the records that a ClientHello is in.
	maxRecords = 64

	recordHeader    = 5
	messageHeader   = 4
	typeClientHello = 1
)

// The extensions that matter.
const (
	extensionName      = 0
	extensionALPN      = 16
	extensionEarlyData = 42
	extensionESNI      = 0xffce // what became ECH, in its first drafts
	extensionECH       = 0xfe0d
)

// What is wrong with a ClientHello.
var (
	errIncomplete = errors.New("it ended, or nothing more came, before it said what it is for")
	errHello      = errors.New("the TLS ClientHello is malformed")
	errHelloLong  = errors.New("the TLS ClientHello is too long")
	errNoHello    = errors.New("the TLS handshake does not begin with a ClientHello")
)

// Hello is what a TLS ClientHello says in plain.
type Hello struct {
	Name string   // SNI as sent; empty if there is none
	ALPN []string // protocols offered
	// Encrypted is that the name may be another: there is an encrypted ClientHello within
	// (ECH). What clients send to look as if there were one (GREASE) can't be told from it;
	// that is its purpose.
	Encrypted bool
	EarlyData bool // data for the server may follow at once
	Size      int  // bytes of the records that it came in
}

// ParseHello reads the ClientHello that b begins with, however it is spread over records.
// need > 0 is that it takes at least so many bytes.
func ParseHello(b []byte) (h Hello, need int, err error) {
	var message []byte
	at := 0
	for n := 0; ; n++ {
		rest := b[at:]
		switch {
		case n == maxRecords:
			return h, 0, errHelloLong
		case len(rest) > 0 && rest[0] != recordHandshake, len(rest) > 1 && rest[1] != 3:
			return h, 0, errHello
		case len(rest) < recordHeader:
			return h, at + recordHeader, nil
		}
		size := int(rest[3])<<8 | int(rest[4])
		if size == 0 || size > maxRecord {
			return h, 0, errHello
		}
		if len(message) == 0 && len(rest) > recordHeader && rest[recordHeader] != typeClientHello {
			return h, 0, errNoHello
		}
		if len(rest) < recordHeader+size {
			return h, at + recordHeader + size, nil
		}
		at += recordHeader + size
		message = append(message, rest[recordHeader:recordHeader+size]...)
		if len(message) < messageHeader {
			continue
		}
		length := messageHeader + int(message[1])<<16 + int(message[2])<<8 + int(message[3])
		switch {
		case length > maxHello:
			return h, 0, errHelloLong
		case len(message) > length:
			return h, 0, errHello // something follows in the same record, which nobody sends
		case len(message) == length:
			h, err = parseClientHello(message[messageHeader:])
			h.Size = at
			return h, 0, err
		}
	}
}

// parseClientHello reads the message's body, RFC 8446 4.1.2.
func parseClientHello(b []byte) (Hello, error) {
	s := cursor(b)
	_, ok := s.take(2 + 32) // version, random
	session, ok1 := s.vector(1)
	suites, ok2 := s.vector(2)
	compression, ok3 := s.vector(1)
	if !ok || !ok1 || !ok2 || !ok3 || len(session) > 32 || len(suites) == 0 || len(suites)%2 != 0 || len(compression) == 0 {
		return Hello{}, errHello
	}
	var h Hello
	if len(s) == 0 {
		return h, nil // no extensions, as of old
	}
	extensions, ok := s.vector(2)
	if !ok || len(s) != 0 {
		return Hello{}, errHello
	}
	seen := map[int]bool{}
	for len(extensions) > 0 {
		kind, ok := extensions.uint(2)
		body, ok1 := extensions.vector(2)
		if !ok || !ok1 || seen[kind] || !h.extension(kind, body) {
			return Hello{}, errHello
		}
		seen[kind] = true
	}
	return h, nil
}

// extension reads one; false is that it is malformed.
func (h *Hello) extension(kind int, body cursor) bool {
	switch kind {
	case extensionName:
		list, ok := body.vector(2)
		nameType, ok1 := list.uint(1)
		name, ok2 := list.vector(2)
		if !ok || !ok1 || !ok2 || nameType != 0 || len(name) == 0 || len(body) != 0 || len(list) != 0 {
			return false
		}
		h.Name = string(name)
	case extensionALPN:
		list, ok := body.vector(2)
		if !ok || len(body) != 0 {
			return false
		}
		for len(list) > 0 {
			p, ok := list.vector(1)
			if !ok || len(p) == 0 {
				return false
			}
			h.ALPN = append(h.ALPN, string(p))
		}
	case extensionECH, extensionESNI:
		h.Encrypted = true
	case extensionEarlyData:
		h.EarlyData = true
	}
	return true
}

// cursor is bytes that are read from the front.
type cursor []byte

func (c *cursor) take(n int) (cursor, bool) {
	if len(*c) < n {
		return nil, false
	}
	out := (*c)[:n]
	*c = (*c)[n:]
	return out, true
}

// uint reads a number of size bytes.
func (c *cursor) uint(size int) (int, bool) {
	b, ok := c.take(size)
	n := 0
	for _, x := range b {
		n = n<<8 | int(x)
	}
	return n, ok
}

// vector reads bytes that follow their length, which has size bytes.
func (c *cursor) vector(size int) (cursor, bool) {
	n, ok := c.uint(size)
	if !ok {
		return nil, false
	}
	return c.take(n)
}
