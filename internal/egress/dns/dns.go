// Package dns answers the name queries of one sandbox, and remembers which address it gave
// for which name: that is what a connection is held against later.
//
// It owns the messages and the table of names ([Names]). It opens no socket: queries come as
// bytes, and addresses from a [Resolver], which is the host's. Which names may be asked, and
// which addresses answered, is the policy's decision.
//
// What holds, whatever a sandbox sends:
//
//   - nothing is resolved for a name that no rule allows; that is refused from the query alone.
//     A name is resolved in lower case and nothing else of the query leaves the host, so it
//     carries no data but itself;
//   - below a wildcard a name is the sandbox's choice, and so it is data for whoever serves
//     that domain: names are bounded in length, and new ones in their rate;
//   - an address that is never to be reached is no answer, not even of an allowed name;
//   - the table is bounded: the names asked least lately make room.
//
// An address that could not be routed out of a sandbox (loopback, IPv6, the sandbox's own
// network) but may be reached is given as one of [StandIns], which means that address for
// this sandbox and name only.
//
// Start with [Names.Ask].
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"hutch.dev/hutch/internal/egress/policy"
)

// Resolver finds the addresses of a host; *net.Resolver is one. The host is in lower case and
// has a final dot, so that nothing is appended to it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

const (
	// MaxUDP is the longest answer in a datagram. More than 16 addresses are not given, so it is
	// only ever short of room for who allows 512 bytes and asks for a very long name.
	MaxUDP = 1232
	minUDP = 512 // which everybody can take

	maxAddrs = 16
	ttl      = 30 // seconds, of answers, and how long they are given without asking again
	// resolveTime bounds a lookup. Clients ask again after five seconds.
	resolveTime = 5 * time.Second

	typeSVCB  dnsmessage.Type = 64
	typeHTTPS dnsmessage.Type = 65
)

// Rules that decide here and are none of a policy's.
const (
	RuleQuery = "dns"       // it is nothing that is answered
	RuleLimit = "dns-limit" // too long, or too many
)

// Question is a query that was understood.
type Question struct {
	Name string // as asked for, without the final dot
	Type string // A, AAAA, …

	id       uint16
	recurse  bool
	question dnsmessage.Question
	edns     bool
	udp      int // bytes that the one who asks can take in a datagram
	name     string
}

// Answer is what became of a question.
type Answer struct {
	Message  []byte // to be sent; empty if there is nothing to be said
	Decision policy.Decision
	// Addrs are what the name was resolved to just now; none if it was known.
	Addrs []netip.Addr
}

// Ask reads a query and answers it, if that takes no lookup. If it does, done is false, and
// Resolve is to be called, which may take a while.
func (n *Names) Ask(p *policy.Policy, message []byte) (q Question, a Answer, done bool) {
	q, code, ok := parse(message)
	if !ok {
		if len(message) < 12 || code == 0 {
			return q, Answer{Decision: malformed("it is no DNS query")}, true
		}
		return q, Answer{Message: header(message, code), Decision: malformed("it is no DNS query that is answered here")}, true
	}
	if q.question.Class != dnsmessage.ClassINET {
		return q, q.refuse(policy.Decision{Action: policy.Deny, Rule: RuleQuery, Reason: "only names of the internet are answered"}), true
	}
	d := p.Name(q.Name)
	if d.Action != policy.Allow {
		return q, q.refuse(d), true
	}
	q.name, _ = policy.NormalName(q.Name) // it was one for the policy
	switch q.question.Type {
	case dnsmessage.TypeA:
	case dnsmessage.TypeAAAA:
		if !n.cfg.IPv6 {
			return q, q.answer(d, nil, dnsmessage.RCodeSuccess), true
		}
	case typeHTTPS, typeSVCB: // clients ask along with the addresses, and make do without
		return q, q.answer(d, nil, dnsmessage.RCodeSuccess), true
	default:
		return q, q.refuse(policy.Decision{Action: policy.Deny, Rule: RuleQuery, Reason: fmt.Sprintf("only addresses are answered, not records of type %s", q.Type)}), true
	}
	if len(q.name) > n.cfg.MaxName {
		return q, q.refuse(policy.Decision{Action: policy.Deny, Rule: RuleLimit, Reason: fmt.Sprintf("the name has more than %d bytes", n.cfg.MaxName)}), true
	}
	if given, code, ok := n.fresh(q.name); ok {
		return q, q.answer(d, n.family(q, given), code), true
	}
	return q, Answer{Decision: d}, false
}

// Resolve answers a question that Ask could not.
func (n *Names) Resolve(ctx context.Context, p *policy.Policy, q Question) Answer {
	if !n.mayLookUp(q.name) {
		return q.refuse(policy.Decision{Action: policy.Deny, Rule: RuleLimit, Reason: "too many names were looked up in a short time: wait, and ask for fewer"})
	}
	var addrs []netip.Addr
	var err error
	o, overridden := p.Override(q.name)
	if overridden && len(o.Addrs) > 0 {
		addrs = o.Addrs
	} else {
		ctx, cancel := context.WithTimeout(ctx, resolveTime)
		defer cancel()
		addrs, err = n.cfg.Resolver.LookupNetIP(ctx, "ip", q.name+".")
	}
	allowed := policy.Decision{Action: policy.Allow}
	if d := p.Name(q.name); d.Action == policy.Allow {
		allowed.Rule = d.Rule
	}
	if err != nil {
		code := dnsmessage.RCodeServerFailure
		if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
			code = dnsmessage.RCodeNameError
			n.failed(q.name, code)
		}
		return q.answer(allowed, nil, code)
	}
	var good []netip.Addr
	var denied policy.Decision
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		if d := p.Resolved(q.name, a); d.Action != policy.Allow {
			denied = d
			continue
		}
		if len(good) < maxAddrs {
			good = append(good, a)
		}
	}
	if len(good) == 0 && denied.Action == policy.Deny {
		return q.refuse(denied)
	}
	given := n.pin(q.name, good)
	a := q.answer(allowed, n.family(q, given), dnsmessage.RCodeSuccess)
	a.Addrs = good
	return a
}

// Busy is the answer to a question that there is no room for now.
func (q Question) Busy() Answer {
	return q.answer(policy.Decision{Action: policy.Deny, Rule: RuleLimit, Reason: "too many names are being looked up at once"}, nil, dnsmessage.RCodeServerFailure)
}

// Fit cuts an answer down to what fits a datagram.
func (q Question) Fit(a Answer) []byte {
	if len(a.Message) <= q.udp || q.udp == 0 {
		return a.Message
	}
	cut := q.answer(a.Decision, nil, dnsmessage.RCodeSuccess).Message
	cut[2] |= 2 // truncated: ask again over TCP
	return cut
}

// family are those of the addresses that a question is about.
func (n *Names) family(q Question, given []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range given {
		if a.Is4() == (q.question.Type == dnsmessage.TypeA) {
			out = append(out, a)
		}
	}
	return out
}

func malformed(why string) policy.Decision {
	return policy.Decision{Action: policy.Deny, Rule: policy.RuleMalformed, Reason: why}
}

// parse reads a query. If it is none that can be answered, code says with what it is refused, 0
// that it is not.
func parse(b []byte) (q Question, code dnsmessage.RCode, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	switch {
	case err != nil, h.Response:
		return q, 0, false // answering answers would go on for ever
	case h.OpCode != 0:
		return q, dnsmessage.RCodeNotImplemented, false
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 {
		return q, dnsmessage.RCodeFormatError, false
	}
	q = Question{id: h.ID, recurse: h.RecursionDesired, question: questions[0], udp: minUDP}
	name := q.question.Name.String()
	q.Name = name[:max(len(name)-1, 0)]
	q.Type = typeName(q.question.Type)
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, false
	}
	for {
		rh, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return q, 0, true
		}
		if err != nil {
			return q, dnsmessage.RCodeFormatError, false
		}
		if rh.Type == dnsmessage.TypeOPT {
			q.edns = true
			q.udp = min(max(int(rh.Class), minUDP), MaxUDP)
		}
		if p.SkipAdditional() != nil {
			return q, dnsmessage.RCodeFormatError, false
		}
	}
}

// typeName is a record type for people.
func typeName(t dnsmessage.Type) string {
	switch t {
	case typeHTTPS:
		return "HTTPS"
	case typeSVCB:
		return "SVCB"
	default:
		if known, ok := strings.CutPrefix(t.String(), "Type"); ok {
			return known
		}
		return fmt.Sprintf("TYPE%d", uint16(t))
	}
}

// header is an answer that repeats nothing but the id.
func header(query []byte, code dnsmessage.RCode) []byte {
	b := make([]byte, 12)
	copy(b, query[:2])
	b[2] = 0x80 | query[2]&0x79 // an answer, with their operation
	b[3] = 0x80 | byte(code)
	return b
}

func (q Question) refuse(d policy.Decision) Answer { return q.answer(d, nil, dnsmessage.RCodeRefused) }

// answer makes the message.
func (q Question) answer(d policy.Decision, addrs []netip.Addr, code dnsmessage.RCode) Answer {
	b := dnsmessage.NewBuilder(make([]byte, 0, 256), dnsmessage.Header{
		ID: q.id, Response: true, RecursionDesired: q.recurse, RecursionAvailable: true, RCode: code,
	})
	b.EnableCompression()
	err := errors.Join(b.StartQuestions(), b.Question(q.question), b.StartAnswers())
	rh := dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET, TTL: ttl}
	for _, a := range addrs {
		if a.Is4() {
			err = errors.Join(err, b.AResource(rh, dnsmessage.AResource{A: a.As4()}))
		} else {
			err = errors.Join(err, b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: a.As16()}))
		}
	}
	if q.edns {
		var opt dnsmessage.ResourceHeader
		err = errors.Join(err, opt.SetEDNS0(MaxUDP, code, false), b.StartAdditionals(), b.OPTResource(opt, dnsmessage.OPTResource{}))
	}
	message, finishErr := b.Finish()
	if errors.Join(err, finishErr) != nil {
		return Answer{Decision: d} // a name that can't be written, which was read: say nothing
	}
	return Answer{Message: message, Decision: d}
}
