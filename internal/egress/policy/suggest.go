package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"hutch.dev/hutch"
)

// Bounds of what is suggested. Somebody is to read it, and what is denied is chosen by what
// runs inside.
const (
	maxSuggested = 200 // rules
	maxBelow     = 20  // names below one
	maxPaths     = 20  // of one name and method
)

// Denial is what was denied: a connection, or, without an address, the lookup of Query.Name.
type Denial struct {
	Query Query
	Count uint64
}

// LeftOut is a denial that no rule is suggested for.
type LeftOut struct {
	Denial
	Why string // a sentence
}

// Suggestion is what to append to a policy so that it allows what was denied.
type Suggestion struct {
	Rules []hutch.NetworkRule
	Left  []LeftOut
}

// Suggest makes the shortest list of rules that allows the denials and no host, address,
// port, or request beside them. A name that was only looked up is taken for a web server's;
// a preset is suggested once all of its hosts were tried. What is denied on purpose, or
// never reached, is left out, and so is what looks like data in names.
func (p *Policy) Suggest(denials []Denial) Suggestion {
	s := suggester{names: make(map[string]*wanted), addrs: make(map[netip.Addr][]hutch.PortRange), policy: p}
	for _, d := range denials {
		if why := s.take(d.Query); why != "" {
			s.out.Left = append(s.out.Left, LeftOut{d, why})
		}
	}
	s.dropMany(denials)
	s.presets()
	s.domains()
	s.ranges()
	if n := len(s.out.Rules); n > maxSuggested {
		s.out.Rules = s.out.Rules[:maxSuggested]
		s.out.Left = append(s.out.Left, LeftOut{Why: fmt.Sprintf("%d more rules would be needed: that is more than anybody reads; allow wider names or ranges if they are meant", n-maxSuggested)})
	}
	return s.out
}

// wanted is what was tried of one name; nothing if it was only looked up.
type wanted struct {
	web   []hutch.PortRange   // by TLS or HTTP
	tcp   []hutch.PortRange   // by anything else
	paths map[string][]string // by method, where a rule allows other requests
	ports []hutch.PortRange   // of those
}

type suggester struct {
	policy *Policy
	names  map[string]*wanted
	addrs  map[netip.Addr][]hutch.PortRange
	out    Suggestion
}

// take notes a denial, or says why it is left out.
func (s *suggester) take(q Query) string {
	if !q.Addr.IsValid() && q.Port == 0 {
		d := s.policy.Name(q.Name)
		if d.Action == Deny && d.Rule != RuleDefault {
			return d.Reason
		}
		if d.Action == Deny {
			name, _ := NormalName(q.Name)
			s.name(name)
		}
		return ""
	}
	d := s.policy.Connect(q)
	switch {
	case d.Action == Allow:
		return "" // by now
	case d.Action == Inspect:
		return "it depends on the request, which was not seen: " + d.Reason
	case d.Rule != RuleDefault:
		return d.Reason
	case mailPorts.has(q.Port):
		return "mail is not suggested: allow the port by itself if it is meant"
	}
	a, name, _ := s.policy.settle(q)
	port := hutch.Port(q.Port)
	if name == "" {
		s.addrs[a] = append(s.addrs[a], port)
		return ""
	}
	if bitOf(q.Proto) == bitTCP {
		w := s.name(name)
		w.tcp = append(w.tcp, port)
		return ""
	}
	if q.HTTP != nil && s.policy.looksAtRequests(name, a, q) {
		path, ok := normalPath(q.HTTP.Path)
		if !ok || !isMethod(q.HTTP.Method) || strings.ContainsAny(path, "%*?#") || len(path) > maxText {
			return "its method or path can be read in two ways, which no rule allows"
		}
		w := s.name(name)
		if w.paths == nil {
			w.paths = make(map[string][]string)
		}
		w.paths[q.HTTP.Method] = append(w.paths[q.HTTP.Method], path)
		w.ports = append(w.ports, port)
		return ""
	}
	w := s.name(name)
	w.web = append(w.web, port)
	return ""
}

func (s *suggester) name(n string) *wanted {
	w := s.names[n]
	if w == nil {
		w = &wanted{}
		s.names[n] = w
	}
	return w
}

// looksAtRequests reports whether some rule allows other requests on that connection.
func (p *Policy) looksAtRequests(name string, a netip.Addr, q Query) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool {
		return r.allow && r.http != nil && r.matches(name, a, q.Port, bitOf(q.Proto))
	})
}

// dropMany takes out names that are many below one, which more likely than not carry
// something, and what was tried on so many ports that somebody looked for open ones.
func (s *suggester) dropMany(denials []Denial) {
	below := make(map[string]int)
	for n := range s.names {
		below[parent(n)]++
	}
	for _, d := range denials {
		if d.Query.Name == "" {
			a, err := normalAddr(d.Query.Addr)
			if n := len(newPortSet(s.addrs[a])); err == nil && n > maxItems {
				s.out.Left = append(s.out.Left, LeftOut{d, fmt.Sprintf("%s was tried on many ports: allow a range of them if it is meant", a)})
			}
			continue
		}
		n, err := NormalName(d.Query.Name)
		switch w := s.names[n]; {
		case err != nil || w == nil:
		case below[parent(n)] > maxBelow:
			s.out.Left = append(s.out.Left, LeftOut{d, fmt.Sprintf("%d names below %s were asked for, which may be data on its way out: allow *.%[2]s if it is meant", below[parent(n)], parent(n))})
		case w.scanned():
			s.out.Left = append(s.out.Left, LeftOut{d, fmt.Sprintf("%s was tried on many ports: allow a range of them if it is meant", n)})
		}
	}
	maps.DeleteFunc(s.names, func(n string, w *wanted) bool { return below[parent(n)] > maxBelow || w.scanned() })
	maps.DeleteFunc(s.addrs, func(_ netip.Addr, ports []hutch.PortRange) bool { return len(newPortSet(ports)) > maxItems })
}

// scanned reports whether a rule would need more ports than it can have.
func (w *wanted) scanned() bool {
	return len(newPortSet(w.web))+len(newPortSet(w.tcp))+len(newPortSet(w.ports)) > maxItems
}

// parent is what a name is below; a name of one or two parts is its own.
func parent(n string) string {
	_, rest, ok := strings.Cut(n, ".")
	if !ok || !strings.Contains(rest, ".") {
		return n
	}
	return rest
}

// presets takes those of which every host was tried, and nothing else of it.
func (s *suggester) presets() {
	for _, name := range slices.Sorted(maps.Keys(s.policy.env.presets)) {
		var hosts []string
		for _, h := range s.policy.env.presets[name].Hosts {
			d, _ := parsePattern(h.Domain) // checked with the environment
			ports, _ := rulePorts(hutch.NetworkRule{Domain: h.Domain, Ports: h.Ports}, true, "")
			w := s.names[d.name]
			if d.wildcard || w == nil || len(w.tcp) > 0 || w.paths != nil || !ports.contains(newPortSet(w.web)) {
				hosts = nil
				break
			}
			hosts = append(hosts, d.name)
		}
		for _, h := range hosts {
			delete(s.names, h)
		}
		if len(hosts) > 0 {
			s.out.Rules = append(s.out.Rules, hutch.NetworkRule{Action: hutch.NetworkAllow, Preset: name})
		}
	}
}

func (s *suggester) domains() {
	for _, n := range slices.Sorted(maps.Keys(s.names)) {
		w := s.names[n]
		rule := hutch.NetworkRule{Action: hutch.NetworkAllow, Domain: n}
		tcp, web := newPortSet(w.tcp), newPortSet(w.web).minus(newPortSet(w.tcp))
		switch {
		case slices.Equal(web, webPorts), len(web) == 0 && len(tcp) == 0 && w.paths == nil:
			s.out.Rules = append(s.out.Rules, rule)
		case len(web) > 0:
			rule.Ports = web
			s.out.Rules = append(s.out.Rules, rule)
		}
		if len(tcp) > 0 {
			rule.Ports, rule.Protocol = tcp, hutch.NetworkTCP
			s.out.Rules = append(s.out.Rules, rule)
		}
		for _, method := range slices.Sorted(maps.Keys(w.paths)) {
			paths := slices.Compact(slices.Sorted(slices.Values(w.paths[method])))
			if len(paths) > maxPaths {
				paths = nil
			}
			s.out.Rules = append(s.out.Rules, hutch.NetworkRule{
				Action: hutch.NetworkAllow, Domain: n, Ports: newPortSet(w.ports),
				HTTP: &hutch.HTTPMatch{Methods: []string{method}, Paths: paths},
			})
		}
	}
}

// ranges joins addresses of which the same ports were tried, where together they are a whole
// range.
func (s *suggester) ranges() {
	byPorts := make(map[string][]netip.Prefix)
	sets := make(map[string]portSet)
	for a, ports := range s.addrs {
		set := newPortSet(ports)
		sets[set.String()] = set
		byPorts[set.String()] = append(byPorts[set.String()], netip.PrefixFrom(a, a.BitLen()))
	}
	var rules []hutch.NetworkRule
	for key, prefixes := range byPorts {
		for _, p := range join(prefixes) {
			text := p.String()
			if p.IsSingleIP() {
				text = p.Addr().String()
			}
			rules = append(rules, hutch.NetworkRule{Action: hutch.NetworkAllow, CIDR: text, Ports: sets[key]})
		}
	}
	slices.SortFunc(rules, func(a, b hutch.NetworkRule) int { return cmp.Compare(a.CIDR, b.CIDR) })
	s.out.Rules = append(s.out.Rules, rules...)
}

// join replaces halves by wholes until there are none.
func join(prefixes []netip.Prefix) []netip.Prefix {
	have := make(map[netip.Prefix]bool)
	for _, p := range prefixes {
		have[p] = true
	}
	for again := true; again; {
		again = false
		for p := range have {
			if p.Bits() == 0 {
				continue
			}
			whole, _ := p.Addr().Prefix(p.Bits() - 1)
			low, high := halves(whole)
			if have[low] && have[high] {
				delete(have, low)
				delete(have, high)
				have[whole] = true
				again = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(have), netip.Prefix.Compare)
}
