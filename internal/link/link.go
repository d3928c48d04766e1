// Package link is the host's end of one sandbox's network link: a user-space network
// stack to which every address there is belongs, so that every connection a sandbox
// tries arrives here with its true destination.
//
// It owns the stack, the packets and their bounds. Whether a flow is let in is the
// [Handler]'s decision, and what is behind it the Handler's business: link dials nowhere.
// What is not admitted is refused at once, in the way that makes the caller inside fail
// at once: TCP by a reset, UDP by "port unreachable", the rest by "administratively
// prohibited". The sandbox has no other way out, so what this package does not pass on
// does not exist.
//
// The bytes on a link are the guest's, and hostile. The bounds that hold for any of them:
//
//   - one goroutine reads a link and works packets off before it reads the next; a queue
//     that grows is the sandbox's own socket buffer. An idle link holds no packet buffer
//     and no thread.
//   - fragments are refused rather than collected: a link with this [MTU] never needs them.
//   - IPv6 never reaches the stack; it is refused before.
//   - refusals are limited to refuseRate a second; a flood waits in the socket buffer.
//   - flows at once are limited, handshakes under way too.
//   - a panic while a packet is worked off ends this link and no other.
//
// Checksums are not looked at: a link is memory, what arrives is what was sent, and a
// guest that offloads checksums leaves them out.
//
// Start with [Attach], then [Handler]; packets go through screen.go first.
package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// MTU is the largest packet on a link, in bytes: the largest there can be, since a link
// is a socket and every packet costs two system calls however long it is.
const MTU = 65535

const (
	// refuseRate and refuseBurst bound the refusals of a link. A refusal costs some 5 µs,
	// so a flood takes a few per cent of one CPU; a program that scans ports in
	// earnest still gets every answer.
	refuseRate  = 5000 // a second
	refuseBurst = 1000
	// maxHandshakes bounds connections that are being set up; more wait for the guest to
	// send its request again.
	maxHandshakes = 64
	// maxFlows bounds connections and UDP flows at once; more are refused. Each may hold
	// a goroutine and two buffers.
	maxFlows = 1024
)

// Proto is what a flow is.
type Proto string

// The protocols that are told apart.
const (
	TCP   Proto = "tcp"
	UDP   Proto = "udp"
	ICMP  Proto = "icmp"  // echo requests and the like
	Other Proto = "other" // any other IP protocol, and fragments
)

// Flow is a connection or datagram that a sandbox tried.
type Flow struct {
	Proto Proto
	Src   netip.AddrPort // as the guest wrote it; not to be believed
	Dst   netip.AddrPort // the true destination; port 0 where there are no ports
}

// Handler decides on flows and serves those it admits. Its methods are called
// concurrently.
type Handler interface {
	// Admit decides whether a TCP or UDP flow is let in. It is called while the link
	// waits, so it must neither block nor call the Endpoint.
	Admit(f Flow) bool
	// Refused is told of every flow that was refused, whether or not Admit was asked. The
	// same restrictions hold.
	Refused(f Flow)
	// ServeTCP serves an admitted connection, on a goroutine of its own, and closes it. It
	// must return soon after reads from c fail, as they do when the link ends.
	ServeTCP(f Flow, c net.Conn)
	// ServeUDP does the same for the datagrams between two addresses; each read and write
	// is one datagram. A flow ends when the handler ends it.
	ServeUDP(f Flow, c net.Conn)
}

// Stats counts what a link has seen. Packets in are the sandbox's.
type Stats struct {
	PacketsIn  uint64 `json:"packets_in"`
	BytesIn    uint64 `json:"bytes_in"`
	PacketsOut uint64 `json:"packets_out"`
	BytesOut   uint64 `json:"bytes_out"`
	DroppedIn  uint64 `json:"dropped_in"`  // malformed, or nothing that could be answered
	DroppedOut uint64 `json:"dropped_out"` // the sandbox did not read them in time
	Throttled  uint64 `json:"throttled"`   // times the link waited because of too many refusals
}

// Endpoint is an attached link.
type Endpoint struct {
	handler Handler
	log     *slog.Logger
	dev     *device
	stack   *stack.Stack
	limit   *rate.Limiter // of refusals
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // set before done is closed

	flows gate

	refused   atomic.Bool // set when a packet that is worked off is refused
	droppedIn atomic.Uint64
	throttled atomic.Uint64
}

// Attach serves the link of which f is the host's end. It works on a duplicate: f stays
// the caller's and may be closed. Kinds other than runtime.LinkPackets are
// hutch.ErrUnsupported.
func Attach(kind runtime.LinkKind, f *os.File, h Handler, log *slog.Logger) (*Endpoint, error) {
	if kind != runtime.LinkPackets {
		return nil, hutch.Errorf(hutch.CodeUnsupported, "a link of kind %q is not supported yet, only %q", kind, runtime.LinkPackets)
	}
	dev, err := newDevice(f)
	if err != nil {
		return nil, fmt.Errorf("attach link: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Endpoint{
		handler: h, log: log, dev: dev,
		limit: rate.NewLimiter(refuseRate, refuseBurst),
		ctx:   ctx, cancel: cancel,
		done:  make(chan struct{}),
		flows: gate{max: maxFlows},
	}
	if e.stack, err = e.newStack(); err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("attach link: %w", err), dev.shut())
	}
	go e.run()
	return e, nil
}

// Close ends the link and returns once nothing of it runs.
func (e *Endpoint) Close() {
	e.cancel()
	_ = e.dev.shut()
	<-e.done
}

// Done is closed once the link has ended: by Close, because the sandbox's end is closed,
// or because it broke.
func (e *Endpoint) Done() <-chan struct{} { return e.done }

// Err says how the link ended, once Done is closed: nil if the sandbox's end or this one
// was closed.
func (e *Endpoint) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}

// Stats returns the counts so far.
func (e *Endpoint) Stats() Stats {
	s := e.dev.stats()
	s.DroppedIn = e.droppedIn.Load()
	s.Throttled = e.throttled.Load()
	return s
}

// run reads packets until the link ends, and cleans up.
func (e *Endpoint) run() {
	defer close(e.done)
	defer e.cancel()
	sound, err := e.read()
	if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
		e.err = fmt.Errorf("link: %w", err)
	}
	_ = e.dev.shut()
	e.flows.shut()
	if sound {
		e.stack.Destroy()
		e.flows.wait()
	}
}

// read works packets off until the link ends. sound is false after a panic: the stack may
// then hold locks for ever, so it is left alone rather than taken down.
func (e *Endpoint) read() (sound bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			e.log.Error("panic while working a packet off: this link ends", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			sound, err = false, errors.New("a packet could not be worked off")
		}
	}()
	for {
		if err := e.dev.read(e.packet); err != nil {
			return true, err
		}
		if e.refused.CompareAndSwap(true, false) {
			e.throttle()
		}
	}
}

// throttle holds the reader back while the link is over its rate of refusals.
func (e *Endpoint) throttle() {
	if e.limit.Allow() {
		return
	}
	e.throttled.Add(1)
	_ = e.limit.Wait(e.ctx) // it fails when the link ends, which the next read says too
}

// refuse notes a refusal.
func (e *Endpoint) refuse(f Flow) {
	e.refused.Store(true)
	e.handler.Refused(f)
}
