package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

// book is a resolver with these names, and a list of what it was asked.
type book struct {
	mu    sync.Mutex
	names map[string]string // addresses, apart by spaces
	asked []string
	err   error
}

func (b *book) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, host)
	if b.err != nil {
		return nil, b.err
	}
	addrs, ok := b.names[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var out []netip.Addr
	for a := range strings.FieldsSeq(addrs) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func (b *book) set(name, addrs string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names[name] = addrs
}

func rules(t testing.TB, env policy.Env, domains ...string) *policy.Policy {
	t.Helper()
	p := hutch.NetworkPolicy{Mode: hutch.NetworkCustom}
	for _, d := range domains {
		p.Rules = append(p.Rules, hutch.NetworkRule{Action: hutch.NetworkAllow, Domain: d})
	}
	c, err := policy.Compile(p, env)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func query(t testing.TB, name string, typ dnsmessage.Type, edns int) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 77, RecursionDesired: true})
	n, err := dnsmessage.NewName(name)
	if err = errors.Join(err, b.StartQuestions(), b.Question(dnsmessage.Question{Name: n, Type: typ, Class: dnsmessage.ClassINET})); err != nil {
		t.Fatal(err)
	}
	if edns > 0 {
		var h dnsmessage.ResourceHeader
		if err := errors.Join(h.SetEDNS0(edns, 0, false), b.StartAdditionals(), b.OPTResource(h, dnsmessage.OPTResource{})); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ask asks and returns the answer's code and addresses.
func ask(t testing.TB, n *Names, p *policy.Policy, name string, typ dnsmessage.Type) (dnsmessage.RCode, []string, Answer) {
	t.Helper()
	q, a, done := n.Ask(p, query(t, name, typ, 0))
	if !done {
		a = n.Resolve(t.Context(), p, q)
	}
	code, addrs := read(t, a.Message, name)
	return code, addrs, a
}

func read(t testing.TB, message []byte, name string) (dnsmessage.RCode, []string) {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(message); err != nil {
		t.Fatal(err)
	}
	if m.ID != 77 || !m.Response || len(m.Questions) != 1 || m.Questions[0].Name.String() != name {
		t.Fatalf("answer to %s: %+v", name, m)
	}
	var addrs []string
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			addrs = append(addrs, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			addrs = append(addrs, netip.AddrFrom16(b.AAAA).String())
		}
	}
	return m.RCode, addrs
}

func TestOnlyAllowedNamesLeave(t *testing.T) {
	b := &book{names: map[string]string{"api.example.com.": "203.0.113.7 203.0.113.8 2001:db8:1::1", "a.files.example.": "203.0.113.9"}}
	n := New(Config{Resolver: b})
	p := rules(t, policy.Env{}, "api.example.com", "*.files.example")
	tests := []struct {
		name string
		typ  dnsmessage.Type
		code dnsmessage.RCode
		want []string
	}{
		{"api.example.com.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"203.0.113.7", "203.0.113.8"}},
		{"aPi.EXAMPLE.com.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"203.0.113.7", "203.0.113.8"}},
		{"api.example.com.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, nil}, // which the link does not carry
		{"api.example.com.", typeHTTPS, dnsmessage.RCodeSuccess, nil},
		{"a.files.example.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"203.0.113.9"}},
		{"b.files.example.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
		{"api.example.com.", dnsmessage.TypeTXT, dnsmessage.RCodeRefused, nil},
		{"api.example.com.", dnsmessage.TypeALL, dnsmessage.RCodeRefused, nil},
		{"api.example.com.", dnsmessage.TypePTR, dnsmessage.RCodeRefused, nil},
		{"files.example.", dnsmessage.TypeA, dnsmessage.RCodeRefused, nil},
		{"root.evil.example.", dnsmessage.TypeA, dnsmessage.RCodeRefused, nil},
		{"root.evil.example.", dnsmessage.TypeTXT, dnsmessage.RCodeRefused, nil},
		{"root.evil.example.", typeHTTPS, dnsmessage.RCodeRefused, nil},
		{".", dnsmessage.TypeA, dnsmessage.RCodeRefused, nil},
		{strings.Repeat("x", 60) + "." + strings.Repeat("y", 60) + ".files.example.", dnsmessage.TypeA, dnsmessage.RCodeRefused, nil},
	}
	for _, test := range tests {
		code, addrs, a := ask(t, n, p, test.name, test.typ)
		if code != test.code || !slices.Equal(addrs, test.want) {
			t.Errorf("%s %v: %v %v, want %v %v", test.name, test.typ, code, addrs, test.code, test.want)
		}
		if denied := a.Decision.Action == policy.Deny; denied != (test.code == dnsmessage.RCodeRefused) || denied && (a.Decision.Rule == "" || a.Decision.Reason == "") {
			t.Errorf("%s %v: decision %+v", test.name, test.typ, a.Decision)
		}
	}
	want := []string{"api.example.com.", "a.files.example.", "b.files.example."}
	if !slices.Equal(b.asked, want) {
		t.Errorf("the resolver was asked for %v, want %v", b.asked, want)
	}
	if got := n.Of(netip.MustParseAddr("203.0.113.8")); len(got) != 1 || got[0] != (Target{"api.example.com", netip.MustParseAddr("203.0.113.8")}) {
		t.Errorf("pinned: %v", got)
	}
	if got := n.Of(netip.MustParseAddr("203.0.113.10")); got != nil {
		t.Errorf("an address that was never given means %v", got)
	}
}

// An allowed name that turns to what is never reached is not answered with that, and what it
// was stays.
func TestRebinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{names: map[string]string{"api.example.com.": "203.0.113.7"}}
		n := New(Config{Resolver: b})
		p := rules(t, policy.Env{}, "api.example.com")
		for _, a := range []string{"127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "100.64.0.1", "0.0.0.0"} {
			b.set("api.example.com.", "203.0.113.7")
			if _, addrs, _ := ask(t, n, p, "api.example.com.", dnsmessage.TypeA); len(addrs) != 1 {
				t.Fatal(addrs)
			}
			b.set("api.example.com.", a)
			if _, addrs, _ := ask(t, n, p, "api.example.com.", dnsmessage.TypeA); !slices.Equal(addrs, []string{"203.0.113.7"}) {
				t.Errorf("%s: what was resolved a moment ago is now %v", a, addrs)
			}
			time.Sleep((ttl + 1) * time.Second)
			code, addrs, answer := ask(t, n, p, "api.example.com.", dnsmessage.TypeA)
			if code != dnsmessage.RCodeRefused || addrs != nil || answer.Decision.Rule != policy.RuleUnreachable {
				t.Errorf("%s: %v %v %+v", a, code, addrs, answer.Decision)
			}
			if got := n.Of(netip.MustParseAddr(a)); got != nil {
				t.Errorf("%s is pinned to %v", a, got)
			}
			b.set("api.example.com.", "203.0.113.7 "+a)
			if _, addrs, _ := ask(t, n, p, "api.example.com.", dnsmessage.TypeA); !slices.Equal(addrs, []string{"203.0.113.7"}) {
				t.Errorf("%s beside a good one: %v", a, addrs)
			}
			time.Sleep((ttl + 1) * time.Second)
		}
	})
}

func TestPinsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{names: map[string]string{"api.example.com.": "203.0.113.7"}}
		n := New(Config{Resolver: b})
		p := rules(t, policy.Env{}, "api.example.com")
		first, second := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.8")
		ask(t, n, p, "api.example.com.", dnsmessage.TypeA)
		time.Sleep(40 * time.Minute)
		b.set("api.example.com.", "203.0.113.8")
		ask(t, n, p, "api.example.com.", dnsmessage.TypeA)
		if len(n.Of(first)) != 1 || len(n.Of(second)) != 1 {
			t.Errorf("a client that still has the first address: %v, %v", n.Of(first), n.Of(second))
		}
		time.Sleep(40 * time.Minute)
		if len(n.Of(first)) != 0 || len(n.Of(second)) != 1 {
			t.Errorf("an hour later: %v, %v", n.Of(first), n.Of(second))
		}
	})
}

// What can't be routed out of the sandbox has a stand-in, for that sandbox and name.
func TestStandIns(t *testing.T) {
	b := &book{names: map[string]string{"six.example.com.": "2606:2800:220:1::1"}}
	env := policy.Env{
		Names: map[string]policy.Override{"mirror.example.com": {Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, "inside.example.com": {Addrs: []netip.Addr{netip.MustParseAddr("10.200.0.2")}}},
	}
	n := New(Config{Resolver: b, Inside: netip.MustParsePrefix("10.200.0.0/30")})
	p := rules(t, env, "*.example.com")
	for name, want := range map[string]string{"mirror.example.com.": "127.0.0.1", "inside.example.com.": "10.200.0.2", "six.example.com.": "2606:2800:220:1::1"} {
		var last []string
		for range 2 {
			_, addrs, _ := ask(t, n, p, name, dnsmessage.TypeA)
			if len(addrs) != 1 || !StandIns.Contains(netip.MustParseAddr(addrs[0])) || last != nil && last[0] != addrs[0] {
				t.Fatalf("%s: %v after %v", name, addrs, last)
			}
			last = addrs
		}
		if got := n.Of(netip.MustParseAddr(last[0])); len(got) != 1 || got[0].Addr.String() != want || got[0].Name+"." != name {
			t.Errorf("%s means %v", last[0], got)
		}
	}
	if slices.Contains(b.asked, "mirror.example.com.") {
		t.Error("the resolver was asked for a name that the operator gave an address")
	}
	// With IPv6 on the link, addresses are given as they are.
	n = New(Config{Resolver: b, IPv6: true})
	if _, addrs, _ := ask(t, n, p, "six.example.com.", dnsmessage.TypeAAAA); !slices.Equal(addrs, []string{"2606:2800:220:1::1"}) {
		t.Errorf("AAAA: %v", addrs)
	}
	if _, addrs, _ := ask(t, n, p, "six.example.com.", dnsmessage.TypeA); addrs != nil {
		t.Errorf("A: %v", addrs)
	}
}

// Names are a channel for data to whoever serves a wildcard's domain: it is narrow.
func TestNewNamesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{names: map[string]string{}}
		for i := range 3000 {
			b.names[fmt.Sprintf("n%d.files.example.", i)] = "203.0.113.9"
		}
		n := New(Config{Resolver: b})
		p := rules(t, policy.Env{}, "*.files.example")
		refused := 0
		for i := range 3000 {
			if i%20 == 0 {
				time.Sleep(time.Second) // within the rate of lookups
			}
			code, _, a := ask(t, n, p, fmt.Sprintf("n%d.files.example.", i), dnsmessage.TypeA)
			if code == dnsmessage.RCodeRefused && a.Decision.Rule == RuleLimit {
				refused++
			}
		}
		if left := len(b.asked); left > 300+151 || left < 300 || refused != 3000-left {
			t.Errorf("%d names left in 150 s, %d were refused", left, refused)
		}
		if n.Len() > 1024 || len(n.byAddr) != 1 {
			t.Errorf("%d names and %d addresses are remembered", n.Len(), len(n.byAddr))
		}
		time.Sleep(time.Hour)
		for i := range 1500 {
			time.Sleep(time.Second)
			ask(t, n, p, fmt.Sprintf("n%d.files.example.", i), dnsmessage.TypeA)
		}
		if n.Len() != 1024 {
			t.Errorf("%d names are remembered, want 1024", n.Len())
		}
		if got := n.byAddr[netip.MustParseAddr("203.0.113.9")]; len(got) != 1024 {
			t.Errorf("the address leads to %d names", len(got))
		}
	})
}

func TestAnswersOfFailures(t *testing.T) {
	b := &book{err: errors.New("the resolver is down")}
	n := New(Config{Resolver: b})
	p := rules(t, policy.Env{}, "api.example.com")
	if code, _, a := ask(t, n, p, "api.example.com.", dnsmessage.TypeA); code != dnsmessage.RCodeServerFailure || a.Decision.Action != policy.Allow {
		t.Errorf("%v, %+v", code, a.Decision)
	}
	q, _, _ := n.Ask(p, query(t, "api.example.com.", dnsmessage.TypeA, 0))
	if code, _ := read(t, q.Busy().Message, "api.example.com."); code != dnsmessage.RCodeServerFailure {
		t.Errorf("busy: %v", code)
	}
}

// An answer that does not fit says so.
func TestTruncation(t *testing.T) {
	name := strings.Repeat(strings.Repeat("x", 61)+".", 2)[:120] + ".example.com."
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("2001:470::%d", i+1))
	}
	b := &book{names: map[string]string{name: strings.Join(many, " ")}}
	n := New(Config{Resolver: b, IPv6: true, MaxName: 200})
	p := rules(t, policy.Env{}, "*.example.com")
	for size, whole := range map[int]bool{0: false, 600: false, 4096: true} {
		q, a, done := n.Ask(p, query(t, name, dnsmessage.TypeAAAA, size))
		if !done {
			a = n.Resolve(t.Context(), p, q)
		}
		var m dnsmessage.Message
		if err := m.Unpack(q.Fit(a)); err != nil {
			t.Fatal(err)
		}
		if m.Truncated == whole || whole && len(m.Answers) != maxAddrs || !whole && len(m.Answers) != 0 {
			t.Errorf("with room for %d bytes: truncated %v, %d answers", size, m.Truncated, len(m.Answers))
		}
		if len(q.Fit(a)) > max(size, minUDP) {
			t.Errorf("with room for %d bytes there are %d", size, len(q.Fit(a)))
		}
	}
}

func TestWhatIsNoQuery(t *testing.T) {
	n := New(Config{Resolver: &book{}})
	p := rules(t, policy.Env{}, "*")
	good := query(t, "a.example.", dnsmessage.TypeA, 0)
	response := slices.Clone(good)
	response[2] |= 0x80
	notify := slices.Clone(good)
	notify[2] |= 4 << 3
	chaos := slices.Clone(good)
	chaos[len(chaos)-1] = 3
	two := slices.Concat(good[:5], []byte{2}, good[6:], good[12:])
	for name, test := range map[string]struct {
		b    []byte
		code int // -1 = nothing is said
	}{
		"nothing":     {nil, -1},
		"short":       {good[:11], -1},
		"an answer":   {response, -1},
		"notify":      {notify, int(dnsmessage.RCodeNotImplemented)},
		"cut":         {good[:len(good)-2], int(dnsmessage.RCodeFormatError)},
		"no question": {slices.Concat(good[:5], []byte{0}, good[6:12]), int(dnsmessage.RCodeFormatError)},
		"two":         {two, int(dnsmessage.RCodeFormatError)},
		"chaos":       {chaos, int(dnsmessage.RCodeRefused)},
	} {
		_, a, done := n.Ask(p, test.b)
		if !done || a.Decision.Action != policy.Deny {
			t.Errorf("%s: done %v, %+v", name, done, a.Decision)
			continue
		}
		if test.code < 0 {
			if len(a.Message) != 0 {
				t.Errorf("%s was answered: %x", name, a.Message)
			}
			continue
		}
		if len(a.Message) < 12 || int(a.Message[3]&15) != test.code || a.Message[2]&0x80 == 0 || string(a.Message[:2]) != string(test.b[:2]) {
			t.Errorf("%s: %x, want code %d", name, a.Message, test.code)
		}
	}
}

// FuzzAsk: whatever comes is answered or dropped, and no name leaves that no rule allows.
func FuzzAsk(f *testing.F) {
	f.Add(query(f, "api.example.com.", dnsmessage.TypeA, 1232))
	f.Add(query(f, "evil.example.", dnsmessage.TypeTXT, 0))
	f.Add(query(f, "AAAA.api.example.com.", dnsmessage.TypeAAAA, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		resolver := &book{names: map[string]string{"api.example.com.": "203.0.113.7"}}
		n := New(Config{Resolver: resolver, IPv6: true})
		p := rules(t, policy.Env{}, "api.example.com")
		q, a, done := n.Ask(p, b)
		if !done {
			a = n.Resolve(t.Context(), p, q)
		}
		for _, name := range resolver.asked {
			if name != "api.example.com." {
				t.Fatalf("%q left", name)
			}
		}
		if len(a.Message) == 0 {
			return
		}
		var m dnsmessage.Parser
		if h, err := m.Start(a.Message); err != nil || !h.Response || len(b) > 1 && h.ID != uint16(b[0])<<8|uint16(b[1]) {
			t.Fatalf("%x was answered with %x", b, a.Message)
		}
	})
}
