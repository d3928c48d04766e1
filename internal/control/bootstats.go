package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// BootStats says how long the creates of a project took, by template and mode, over the
// sandboxes on record: those that live, and those that ended within the retention.
func (c *Control) BootStats(ctx context.Context, p hutch.ProjectID) ([]hutch.BootStat, error) {
	type kind struct{ template, mode string }
	took := map[kind][]time.Duration{}
	for cursor := ""; ; {
		l, next, err := c.store.Sandboxes(ctx, store.SandboxFilter{Project: p}, store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return nil, fmt.Errorf("list sandboxes: %w", err)
		}
		for _, sb := range l {
			if sb.BootMode != "" {
				k := kind{sb.Template, sb.BootMode}
				took[k] = append(took[k], sb.Boot)
			}
		}
		if next == "" {
			break
		}
		cursor = next
	}
	out := make([]hutch.BootStat, 0, len(took))
	for k, all := range took {
		slices.Sort(all)
		out = append(out, hutch.BootStat{
			Template: k.template, Mode: k.mode, Count: len(all),
			P50: percentile(all, 50), P95: percentile(all, 95), P99: percentile(all, 99), Max: all[len(all)-1],
		})
	}
	slices.SortFunc(out, func(a, b hutch.BootStat) int {
		return cmp.Or(cmp.Compare(a.Template, b.Template), cmp.Compare(a.Mode, b.Mode))
	})
	return out, nil
}

// percentile of a sorted, not empty list: the least of which p per cent are no greater.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1]
}
