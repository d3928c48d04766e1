// Package sniff says what a connection is from its first bytes: which protocol, and which
// host it is for. It also follows a connection for as long as what it is for can change: the
// requests of HTTP/1 ([Head], [Body]) and the second ClientHello of TLS ([Records]).
//
// It reads and decides nothing: whether a host may be reached is the policy's business, and
// when to give up waiting for bytes the caller's. The bytes are a guest's, so every parser
// is pure, bounded, strict and fuzzed: what servers could read in two ways is an error, never
// a guess.
//
// The parsers are given all bytes so far, again and again as more come, and say how many they
// need to say more. They may be called for every byte of a connection that drips.
//
// Start with [Look].
package sniff

import "bytes"

// Protocol is what is spoken on a connection.
type Protocol string

// The protocols that are told apart.
const (
	Unknown Protocol = "unknown"
	TLS     Protocol = "tls"
	HTTP    Protocol = "http"  // HTTP/1, with a head that can be read
	HTTP2   Protocol = "http2" // HTTP/2 without TLS, by prior knowledge
	SSH     Protocol = "ssh"
	Mining  Protocol = "mining"
)

// MaxFirst is how many bytes Look ever needs: those of the largest head of a request.
const MaxFirst = MaxHead

// First is what the first bytes of a connection say.
type First struct {
	Protocol Protocol
	Hello    Hello // of TLS
	Head     Head  // of HTTP
	// Err says why the protocol's first message can't be read; it is safe to be shown. Hello and
	// Head are of no use then.
	Err error
}

// preface begins a connection of HTTP/2.
var preface = []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

// Look says what b begins. If it can't be said yet, need is how many bytes it takes at
// least, which is more than there are; else need is 0. Once the caller waits for no more it
// asks with end.
func Look(b []byte, end bool) (f First, need int) {
	f, need = look(b)
	if need > 0 && end {
		f.Err = errIncomplete
		return f, 0
	}
	return f, need
}

func look(b []byte) (First, int) {
	switch {
	case len(b) == 0:
		return First{Protocol: Unknown}, 1
	case b[0] == recordHandshake:
		return lookTLS(b)
	case hasPrefix(b, preface):
		return First{Protocol: HTTP2}, 0
	case hasPrefix(preface, b):
		return First{Protocol: Unknown}, len(preface)
	case hasPrefix(b, []byte("SSH-")):
		return First{Protocol: SSH}, 0
	case b[0] == '{' || b[0] == '[':
		mining, need := LooksLikeMining(b)
		if mining {
			return First{Protocol: Mining}, 0
		}
		return First{Protocol: Unknown}, need
	}
	return lookHTTP(b)
}

func lookTLS(b []byte) (First, int) {
	if len(b) == 1 {
		return First{Protocol: Unknown}, 2
	}
	if b[1] != 3 {
		return First{Protocol: Unknown}, 0
	}
	h, need, err := ParseHello(b)
	return First{Protocol: TLS, Hello: h, Err: err}, need
}

// lookHTTP tells HTTP from other protocols whose messages are lines of text.
func lookHTTP(b []byte) (First, int) {
	line, _, whole := bytes.Cut(b, []byte("\n"))
	method, _, spaced := bytes.Cut(line, []byte(" "))
	switch {
	case len(method) > maxMethod, len(method) == 0 && spaced, !isToken(bytes.TrimSuffix(method, []byte("\r"))):
		return First{Protocol: Unknown}, 0
	case !whole && len(b) >= MaxHead:
		return First{Protocol: Unknown}, 0
	case !whole:
		return First{Protocol: Unknown}, len(b) + 1
	case !bytes.Contains(line, []byte(" HTTP/")):
		return First{Protocol: Unknown}, 0
	}
	h, need, err := ParseHead(b)
	if err == nil && need == 0 && h.mining {
		return First{Protocol: Mining}, 0
	}
	return First{Protocol: HTTP, Head: h, Err: err}, need
}

func hasPrefix(b, prefix []byte) bool { return bytes.HasPrefix(b, prefix) }
