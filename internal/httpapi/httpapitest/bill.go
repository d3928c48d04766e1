package httpapitest

import (
	"context"
	"time"

	"hutch.dev/hutch"
)

// Bill is what a Fake says was used, whatever is asked for; a query it keeps.
type Bill struct {
	Card      *hutch.RateCard
	Intervals []hutch.Usage // of project "default"; cut and summed as asked for
	Budget    *hutch.BudgetState
	Asked     hutch.UsageQuery
}

// SetBill sets what is said of usage from now on.
func (f *Fake) SetBill(b Bill) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bill = b
}

// Asked is the last query about usage.
func (f *Fake) Asked() hutch.UsageQuery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bill.Asked
}

// UsageReport implements httpapi.Billing. Its cursors are numbers.
func (f *Fake) UsageReport(_ context.Context, q hutch.UsageQuery) (out hutch.UsageReport, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bill.Asked = q
	used := f.usedLocked(q)
	if q.Sandbox != "" && len(used) == 0 {
		return out, hutch.Errorf(hutch.CodeNotFound, "there is no sandbox %q", q.Sandbox)
	}
	for _, u := range used {
		out.Total.Add(u)
	}
	out.Budget = f.bill.Budget
	switch q.By {
	case hutch.UsageByProject:
	case hutch.UsageBySandbox:
		out.Sandboxes, out.Next, err = page(bySandbox(used), q.Cursor, q.Limit)
	default:
		out.Intervals, out.Next, err = page(used, q.Cursor, q.Limit)
	}
	return out, err
}

func (f *Fake) usedLocked(q hutch.UsageQuery) []hutch.Usage {
	var out []hutch.Usage
	for _, u := range f.bill.Intervals {
		if (q.Project != "" && u.Project != q.Project) || (q.Sandbox != "" && u.Sandbox != q.Sandbox) {
			continue
		}
		if u, ok := u.Clip(q.From, q.To); ok {
			out = append(out, u)
		}
	}
	return out
}

// bySandbox is the sum of each sandbox's intervals.
func bySandbox(used []hutch.Usage) []hutch.SandboxUsage {
	at := map[hutch.SandboxID]int{}
	var all []hutch.SandboxUsage
	for _, u := range used {
		i, ok := at[u.Sandbox]
		if !ok {
			i = len(all)
			at[u.Sandbox] = i
			all = append(all, hutch.SandboxUsage{Project: u.Project, Sandbox: u.Sandbox, From: u.From})
		}
		all[i].To = u.To
		all[i].Total.Add(u)
	}
	return all
}

// RateCard implements httpapi.Billing.
func (f *Fake) RateCard() *hutch.RateCard {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bill.Card
}

// TwoHours is what a sandbox used that was alive for two hours, with a working set of a GiB,
// and busy for four minutes of them, in three intervals from Epoch on.
func TwoHours(p hutch.ProjectID, id hutch.SandboxID) []hutch.Usage {
	at := func(m int) time.Time { return Epoch.Add(time.Duration(m) * time.Minute) }
	u := func(from, to int, cpu time.Duration) hutch.Usage {
		return hutch.Usage{Project: p, Sandbox: id, From: at(from), To: at(to), State: hutch.StateRunning, CPU: cpu, Memory: 1 << 30, Disk: 1 << 29}
	}
	return []hutch.Usage{u(0, 60, 0), u(60, 64, 4*time.Minute), u(64, 120, 0)}
}

// ExampleCard has the rates of the example in docs/usage.md.
var ExampleCard = hutch.RateCard{Currency: "USD", CPUHour: 0.054, MemoryGiBHour: 0.0162}
