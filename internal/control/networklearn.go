package control

import (
	"context"
	"fmt"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/store"
)

// policyOf is a policy that can be asked, in what the operator says.
func policyOf(p hutch.NetworkPolicy, cfg NetworkConfig) (*policy.Policy, error) {
	held, err := policy.Compile(p, cfg.Env)
	if err != nil {
		return nil, hutch.Wrap(hutch.CodeConflict, err, "its policy does not hold in the operator's configuration: replace it first")
	}
	return held, nil
}

// deniedTo is what a sandbox was denied, each once.
func (c *Control) deniedTo(ctx context.Context, id hutch.SandboxID) ([]policy.Denial, error) {
	var all []policy.Denial
	at := map[policy.Query]int{}
	for after := int64(0); ; {
		l, err := c.store.NetworkEntries(ctx, store.NetworkFilter{Sandbox: id, After: after, Denied: true, Limit: 1000})
		if err != nil {
			return nil, fmt.Errorf("read the network log of %s: %w", id, err)
		}
		if len(l) == 0 {
			return all, nil
		}
		for _, e := range l {
			q, ok := queryOf(e)
			if !ok {
				continue
			}
			i, seen := at[q]
			if !seen {
				i = len(all)
				at[q] = i
				all = append(all, policy.Denial{Query: q})
			}
			all[i].Count += uint64(max(0, e.Count))
		}
		after = l[len(l)-1].Seq
	}
}

// queryOf is the question that an entry answers. What no rule could ever allow is none.
func queryOf(e hutch.NetworkEntry) (policy.Query, bool) {
	q := policy.Query{Proto: policy.Proto(e.Proto), Name: e.Name, Addr: e.Addr, Port: e.Port}
	switch q.Proto {
	case "dns":
		return policy.Query{Name: e.Name}, e.Name != ""
	case policy.ProtoTCP, policy.ProtoTLS, policy.ProtoHTTP:
		return q, e.Addr.IsValid() && e.Port != 0
	default:
		return q, false
	}
}

func suggestion(s policy.Suggestion) hutch.NetworkSuggestion {
	out := hutch.NetworkSuggestion{Rules: s.Rules}
	for _, l := range s.Left {
		out.Left = append(out.Left, hutch.NetworkLeftOut{
			Name: l.Query.Name, Addr: l.Query.Addr, Port: l.Query.Port, Count: int64(l.Count), Why: l.Why,
		})
	}
	return out
}
