package flow

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/egress/sniff"
)

const (
	// tellTime is how long the guest has to take what it is told, and to close the connection.
	tellTime = time.Second
	// maxDrain is how much of what the guest still sends is read, so that it is not reset before it
	// has read what it was told.
	maxDrain = 4 << 20
)

// The alerts of TLS that are used, RFC 8446 6.
const (
	alertInternal = 80
	alertAccess   = 49
)

// tell says in the protocol that is spoken that the connection is denied, and why if that can
// be said, and sees the guest off. What has no way to say so is reset.
func (c *conn) tell(p sniff.Protocol, d policy.Decision) {
	switch p {
	case sniff.TLS:
		c.say(alert(alertAccess))
	case sniff.HTTP:
		code := "403 Forbidden"
		if d.Rule == policy.RuleMalformed {
			code = "400 Bad Request"
		}
		c.say(response(code, d.Rule, "The sandbox's network policy does not allow this: "+d.Reason+"."))
	case sniff.HTTP2:
		c.say(goAway(d.Reason))
	case sniff.SSH, sniff.Mining, sniff.Unknown:
		c.guest.Abort()
	}
}

// tellFailure says that the server could not be reached.
func (c *conn) tellFailure(p sniff.Protocol) {
	switch p {
	case sniff.TLS:
		c.say(alert(alertInternal))
	case sniff.HTTP:
		c.s.mu.Lock()
		why := c.failed
		c.s.mu.Unlock()
		c.say(response("502 Bad Gateway", "", "The network policy allows this, but the server could not be reached: "+why+"."))
	case sniff.HTTP2, sniff.SSH, sniff.Mining, sniff.Unknown:
		c.guest.Abort()
	}
}

// say writes a last message, and reads what the guest sends until it closes.
func (c *conn) say(b []byte) {
	_ = c.guest.SetDeadline(time.Now().Add(tellTime))
	if _, err := c.guest.Write(b); err != nil {
		c.guest.Abort()
		return
	}
	_ = c.guest.CloseWrite()
	_, _ = io.CopyN(io.Discard, c.guest, maxDrain)
}

func alert(code byte) []byte { return []byte{21, 3, 3, 0, 2, 2, code} }

// response is an answer of HTTP/1 with a body of text, also for HEAD: the connection ends after
// it, so nobody takes it for anything else.
func response(status, rule, text string) []byte {
	var b strings.Builder
	body := text + "\n"
	if rule != "" {
		body += "Decided by: " + rule + "\n"
	}
	fmt.Fprintf(&b, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n%s", status, len(body), body)
	return []byte(b.String())
}

// goAway is what ends a connection of HTTP/2: empty settings, and GOAWAY with "use HTTP/1.1" and
// the reason.
func goAway(reason string) []byte {
	frame := func(kind byte, payload []byte) []byte {
		head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, 0, 0, 0, 0, 0}
		return append(head, payload...)
	}
	last := binary.BigEndian.AppendUint32(make([]byte, 4), 0xd)
	return slices.Concat(frame(4, nil), frame(7, append(last, reason...)))
}
