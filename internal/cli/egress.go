package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// EgressCommands are the commands about what sandboxes may reach, to be mounted below `egress`.
func EgressCommands(env Env) []*cobra.Command {
	makers := []func(*app) *cobra.Command{newEgressGet, newEgressSet, newEgressLock, newEgressLog, newEgressLearn}
	out := make([]*cobra.Command, 0, len(makers))
	for _, mk := range makers {
		a := &app{Env: env}
		c := mk(a)
		c.ValidArgsFunction = a.completeSandboxes
		a.prepare(c)
		out = append(out, c)
	}
	return out
}

func newEgressGet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "get SANDBOX",
		Short: "Show what a sandbox may reach",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			n, err := cl.Network(cmd.Context(), hutch.SandboxID(args[0]))
			if err != nil {
				return err
			}
			return a.showNetwork(n)
		},
	}
}

func newEgressSet(a *app) *cobra.Command {
	var (
		req   networkFlags
		allow []string
	)
	c := &cobra.Command{
		Use:   "set SANDBOX",
		Short: "Replace what a sandbox may reach",
		Long: "Replaces what a sandbox may reach, and returns once that holds: open connections that\n" +
			"are denied now are cut.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.allow = allow
			n, err := req.network(a)
			if err == nil && n == nil {
				err = errors.New("say what it may reach: --off, --trusted, --allow or --policy")
			}
			if err != nil {
				return a.usage(cmd, err)
			}
			cl, err := a.client()
			if err != nil {
				return err
			}
			state, err := cl.SetNetwork(cmd.Context(), hutch.SandboxID(args[0]), *n)
			if err != nil {
				return err
			}
			return a.showNetwork(state)
		},
	}
	f := c.Flags()
	f.BoolVar(&req.off, "off", false, "nothing")
	f.BoolVar(&req.trusted, "trusted", false, "the package registries that the operator trusts")
	f.StringArrayVar(&allow, "allow", nil, "DOMAIN, *.DOMAIN, ADDRESS or RANGE, with :PORT if it is another than 80 and 443, or preset:NAME; may be repeated")
	f.StringVar(&req.policy, "policy", "", "file with a policy in JSON, - for standard input; see docs/network.md")
	c.MarkFlagsMutuallyExclusive("off", "trusted", "allow", "policy")
	return c
}

// networkFlags say what a sandbox may reach.
type networkFlags struct {
	off, trusted bool
	allow        []string
	policy       string
}

// network is what was said; nil = nothing.
func (f networkFlags) network(a *app) (*api.Network, error) {
	switch {
	case f.off:
		return &api.Network{Mode: hutch.NetworkOff}, nil
	case f.trusted:
		return &api.Network{Mode: hutch.NetworkTrusted}, nil
	case len(f.allow) > 0:
		n := &api.Network{Mode: hutch.NetworkCustom}
		for _, s := range f.allow {
			r, err := allowRule(s)
			if err != nil {
				return nil, err
			}
			n.Rules = append(n.Rules, r)
		}
		return n, nil
	case f.policy != "":
		return readPolicy(a, f.policy)
	}
	return nil, nil
}

// allowRule reads one --allow. Whether it is a name or an address is told by its characters: the
// server says what is wrong with either.
func allowRule(s string) (api.NetworkRule, error) {
	r := api.NetworkRule{Action: hutch.NetworkAllow}
	if name, ok := strings.CutPrefix(s, "preset:"); ok {
		r.Preset = name
		return r, nil
	}
	host := s
	if i := strings.LastIndex(s, ":"); i >= 0 && (strings.Count(s, ":") == 1 || strings.HasPrefix(s, "[")) && !strings.HasSuffix(s, "]") {
		p, err := hutch.ParsePortRange(s[i+1:])
		if err != nil {
			return r, fmt.Errorf("--allow %q: %w", s, err)
		}
		host, r.Ports = s[:i], []hutch.PortRange{p}
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" {
		return r, fmt.Errorf("--allow %q: want a domain, an address or preset:NAME", s)
	}
	if strings.ContainsAny(host, ":/") || strings.Trim(host, "0123456789.") == "" {
		r.CIDR = host
	} else {
		r.Domain = host
	}
	return r, nil
}

const maxPolicyFile = 1 << 20 // bytes; what the server takes

func readPolicy(a *app, path string) (*api.Network, error) {
	var b []byte
	var err error
	if path == "-" {
		b, err = io.ReadAll(io.LimitReader(a.Stdin, maxPolicyFile))
	} else {
		b, err = a.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var n api.Network
	if err := dec.Decode(&n); err != nil {
		return nil, fmt.Errorf("--policy %s: %w", path, err)
	}
	return &n, nil
}

func newEgressLock(a *app) *cobra.Command {
	var stop bool
	c := &cobra.Command{
		Use:   "lock SANDBOX",
		Short: "End a sandbox's setup: from then on its agent's policy holds",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			n, err := cl.LockNetwork(cmd.Context(), hutch.SandboxID(args[0]), stop)
			if err != nil {
				return err
			}
			return a.showNetwork(n)
		},
	}
	c.Flags().BoolVar(&stop, "stop", false, "end everything that setup left running, too")
	return c
}

func newEgressLog(a *app) *cobra.Command {
	var denied bool
	c := &cobra.Command{
		Use:   "log SANDBOX",
		Short: "Show what a sandbox was allowed and denied",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			l, err := take(cl.NetworkLog(cmd.Context(), hutch.SandboxID(args[0]), 0, denied), 0)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(l)
			}
			rows := [][]cell{head("AGE", "", "PROTO", "HOST", "ADDRESS", "SENT", "GOT", "RULE", "WHY")}
			for _, e := range l {
				what := cell{string(e.Action), green}
				if e.Action == hutch.NetworkDeny {
					what.colour = red
				}
				if e.Count > 1 {
					what.text += " ×" + strconv.FormatInt(e.Count, 10)
				}
				addr := e.Addr
				if e.Port != 0 {
					addr += ":" + strconv.Itoa(e.Port)
				}
				rows = append(rows, []cell{
					text(span(a.Now().Sub(e.At))), what, text(e.Proto), text(short(e.Host)), text(addr),
					text(strconv.FormatInt(e.SentBytes, 10)), text(strconv.FormatInt(e.GotBytes, 10)), text(short(e.Rule)), text(e.Reason),
				})
			}
			return a.table(rows)
		},
	}
	c.Flags().BoolVar(&denied, "denied", false, "only what was denied")
	return c
}

func newEgressLearn(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "learn SANDBOX",
		Short: "Print the rules that would allow what a sandbox was denied",
		Long: "Prints the shortest list of rules that allows what a sandbox was denied and nothing beside\n" +
			"it, in JSON, as part of a policy; and on standard error what was denied and is left out.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			s, err := cl.SuggestNetwork(cmd.Context(), hutch.SandboxID(args[0]))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			for _, l := range s.LeftOut {
				host := l.Host
				if host == "" {
					host = l.Addr
				}
				if l.Port != 0 {
					host += ":" + strconv.Itoa(l.Port)
				}
				fmt.Fprintln(a.Stderr, strings.TrimPrefix(clean(host)+": "+l.Why, ": "))
			}
			return a.printJSON(api.Network{Mode: hutch.NetworkCustom, Rules: s.Rules})
		},
	}
}

func (a *app) showNetwork(n api.NetworkState) error {
	if a.json {
		return a.printJSON(n)
	}
	source := string(n.Source)
	if source == "" {
		source = "nobody"
	}
	rows := [][]cell{{{"phase", dim}, text(string(n.Phase))}, {{"said by", dim}, text(source)}}
	if n.Problem != "" {
		rows = append(rows, []cell{{"problem", dim}, {clean(n.Problem), red}})
	}
	if len(n.Holds) == 0 {
		rows = append(rows, []cell{{"reaches", dim}, text("nothing")})
	}
	for _, r := range n.Holds {
		rows = append(rows, []cell{{string(r.Action), dim}, text(ruleText(r))})
	}
	return a.table(rows)
}

// ruleText is a rule in a line.
func ruleText(r api.NetworkRule) string {
	var parts []string
	for _, s := range []string{r.Domain, r.CIDR} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if r.Preset != "" {
		parts = append(parts, "preset "+r.Preset)
	}
	if len(r.Ports) > 0 {
		ports := make([]string, 0, len(r.Ports))
		for _, p := range r.Ports {
			ports = append(ports, p.String())
		}
		parts = append(parts, "port "+strings.Join(ports, ", "))
	}
	if r.Protocol != "" {
		parts = append(parts, "by "+string(r.Protocol))
	}
	if r.HTTP != nil {
		parts = append(parts, strings.Join(slices.Concat(r.HTTP.Methods, r.HTTP.Paths), " "))
	}
	if r.Name != "" {
		parts = append(parts, "("+r.Name+")")
	}
	return strings.Join(parts, " ")
}
