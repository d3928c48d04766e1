// Package guestlink is the stream between the node and the guest agent: a byte
// stream that may be cut at any byte, made into connections that are whole, and
// HTTP/2 on top of them.
//
// The stream is one end of a socket pair (gVisor) or a serial port (a microVM). It
// has no beginning: a restored clone finds a new stream under its feet while both
// ends are in the middle of a message, and a node agent that is killed while it
// writes leaves half a message to its successor. So the link layer resynchronises:
// whoever opens a session sends a hello that cannot be mistaken for data, and
// everything older than its acknowledgement is dropped. What a session delivers is
// exactly what the other end wrote in that session, or an error.
//
// # On the wire
//
// One byte, E = 0xF5, which no UTF-8 text contains, is special:
//
//	E 00    a literal E
//	E 01    begins a control message, always and only
//	E E     still "after an E": the first E was the last byte before a cut
//
// Everything else is data as it is. A control message is 18 bytes, escaped like
// data: kind, version, and the 16-byte nonce of a session. The kinds are hello
// (node to guest), ack (guest to node) and end (either way: this session is over).
// A message that is malformed or cut short is dropped up to the next E 01.
//
// # Ends
//
// [Host] is the node's end, [Listener] the guest's. Each has one session at a time;
// a new one ends the one before. [Transport] and [Serve] put HTTP/2 on them.
//
// Invariants: memory is bounded whatever bytes arrive. Nothing the guest sends is
// trusted: see [Transport] for the bounds. The guest end trusts the node.
// A handler in the guest reads its request's body without waiting for any program of the
// tenant's, but for bodies so short that all of them together leave room: the guest's
// connection has one window for all, and 4 MiB is all it can be.
//
// Lock order: Host.dialing, then the read token, then the write token, then
// Host.mu; on the guest's end, the write token, then Listener.mu, then session.mu.
// Only the two tokens are held across I/O.
//
// The package is compiled into the guest agent, so it imports the standard library
// only. Start with codec.go, then [Host.Dial] and Listener.readLoop.
package guestlink
