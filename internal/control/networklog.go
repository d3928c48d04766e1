package control

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"hutch.dev/hutch"
)

const (
	// keptDecisions is how many entries of a sandbox are kept: a day of an agent's work has some
	// thousands.
	keptDecisions = 10_000
	// deniedEvents is how many events of denials there are of a sandbox in deniedSpan: enough to see
	// what it wants. The log has all of them.
	deniedEvents = 10
	deniedSpan   = time.Minute
)

// deniedEvent is the type of event that tells of a denial.
const deniedEvent = "network.denied"

// decisions reads the gateway's list.
type decisions struct {
	at      hutch.NetworkOrigin
	lost    int64 // of the process that at is of
	events  eventRate
	trouble string // what was logged last; empty while all is well
}

// keepingDecisions puts on record what sandboxes are allowed and denied, until ctx ends.
func (c *Control) keepingDecisions(ctx context.Context) {
	d := &decisions{events: eventRate{of: map[hutch.SandboxID]*eventSpan{}}}
	t := time.NewTicker(c.cfg.DecisionsEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		err := c.keepDecisions(ctx, d)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			d.trouble = ""
		case err.Error() != d.trouble: // once, not each second
			d.trouble = err.Error()
			c.log.Error("what sandboxes were allowed and denied is not put on record for now", "op", "network", "error", err)
		}
	}
}

// keepDecisions reads to the end of the list. What can't be stored is read again: the gateway is
// told that a page is in good hands by the reading of the next.
func (c *Control) keepDecisions(ctx context.Context, d *decisions) error {
	for {
		page, err := c.cfg.Decisions.NetworkEntries(ctx, d.at)
		if err != nil {
			return err
		}
		if page.Anew {
			d.lost = 0
			c.log.Warn("the egress gateway was replaced: what it had decided last is not on record", "op", "network")
		}
		events, err := c.denials(ctx, d, page.Entries)
		if err != nil {
			return err
		}
		if err := c.store.AppendNetwork(ctx, keptDecisions, page.Entries, events...); err != nil {
			return err
		}
		if len(events) > 0 {
			c.watchers.wake()
		}
		d.at = page.Next
		c.countDecisions(d, page)
		if !page.More {
			return nil
		}
	}
}

func (c *Control) countDecisions(d *decisions, page hutch.NetworkEntries) {
	if page.Lost > d.lost {
		c.log.Warn("decisions of the egress gateway made room for others before they were on record", "op", "network", "entries", page.Lost-d.lost)
	}
	if m := c.cfg.NetworkMetrics; m != nil {
		m.NetworkLost(max(0, page.Lost-d.lost))
		for _, e := range page.Entries {
			m.NetworkDecided(e)
		}
	}
	d.lost = page.Lost
}

// denials are the events of a page. A sandbox without a record has none.
func (c *Control) denials(ctx context.Context, d *decisions, page []hutch.NetworkEntry) (all []hutch.Event, err error) {
	known := map[hutch.SandboxID]*hutch.Sandbox{}
	for _, e := range page {
		if e.Allowed {
			continue
		}
		left, ok := d.events.take(e.Sandbox, time.Now())
		if !ok {
			continue
		}
		sb, seen := known[e.Sandbox]
		if !seen {
			rec, err := c.store.Sandbox(ctx, e.Sandbox)
			if err != nil && !errors.Is(err, hutch.ErrNotFound) {
				return nil, err
			}
			if err == nil {
				sb = &rec
			}
			known[e.Sandbox] = sb
		}
		if sb == nil {
			continue
		}
		host := e.Name
		if host == "" && e.Addr.IsValid() {
			host = e.Addr.String()
		}
		data := []string{"proto", e.Proto, "host", host, "rule", e.Rule, "count", strconv.FormatInt(e.Count, 10)}
		if e.Port != 0 {
			data = append(data, "port", strconv.Itoa(int(e.Port)))
		}
		if left > 0 {
			data = append(data, "unreported", strconv.Itoa(left))
		}
		ev := event(*sb, deniedEvent, data...)
		ev.At = e.At
		all = append(all, ev)
	}
	return all, nil
}

// eventRate bounds events by sandbox.
type eventRate struct {
	of     map[hutch.SandboxID]*eventSpan
	pruned time.Time
}

type eventSpan struct {
	since   time.Time
	given   int
	skipped int // since the last that was given
}

// take reports whether there may be another event of a sandbox, and how many there were not since
// the last.
func (r *eventRate) take(id hutch.SandboxID, now time.Time) (skipped int, ok bool) {
	if now.Sub(r.pruned) > deniedSpan {
		for k, s := range r.of {
			if now.Sub(s.since) > 2*deniedSpan {
				delete(r.of, k)
			}
		}
		r.pruned = now
	}
	s := r.of[id]
	if s == nil {
		s = &eventSpan{since: now}
		r.of[id] = s
	}
	if now.Sub(s.since) > deniedSpan {
		s.since, s.given = now, 0
	}
	if s.given >= deniedEvents {
		s.skipped++
		return 0, false
	}
	skipped, s.skipped = s.skipped, 0
	s.given++
	return skipped, true
}

// SuggestNetwork says what to add to a sandbox's policy so that it allows what it was denied so
// far, as far as that is on record.
func (c *Control) SuggestNetwork(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.NetworkSuggestion, error) {
	sb, err := c.load(ctx, p, id)
	if err != nil {
		return hutch.NetworkSuggestion{}, err
	}
	rules := cmp.Or(sb.Network.Holds, &hutch.NetworkPolicy{Mode: hutch.NetworkOff})
	held, err := policyOf(*rules, c.network.get())
	if err != nil {
		return hutch.NetworkSuggestion{}, err
	}
	denied, err := c.deniedTo(ctx, id)
	if err != nil {
		return hutch.NetworkSuggestion{}, err
	}
	return suggestion(held.Suggest(denied)), nil
}
