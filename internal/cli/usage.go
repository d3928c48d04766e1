package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

func newUsage(a *app) *cobra.Command {
	var (
		from, to timeFlag
		explain  bool
	)
	c := &cobra.Command{
		Use:   "usage [SANDBOX]",
		Short: "Print what sandboxes used, and what it costs",
		Long: "Prints what each sandbox used from its start to its end, dead ones too, and what that\n" +
			"costs by the rate card of the server. With --explain, how that comes about. If the\n" +
			"project has a budget, how far that is used up for this period.",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			f := client.UsageFilter{From: from.t, To: to.t, By: "sandbox"}
			if len(args) == 1 {
				f.Sandbox = hutch.SandboxID(args[0])
			}
			if explain && a.json {
				return a.usage(cmd, errors.New("--explain is for people: with --json every figure of it is there"))
			}
			cl, err := a.client()
			if err != nil {
				return err
			}
			report, err := wholeReport(cmd.Context(), cl, f)
			switch {
			case err != nil:
				return err
			case a.json:
				return a.printJSON(report)
			case explain:
				return a.explain(f.Sandbox, report)
			}
			return a.printReport(report)
		},
	}
	c.Flags().Var(&from, "from", "not what was used before: a time like 2026-01-02T15:04:05Z, or how long ago, like 2h")
	c.Flags().Var(&to, "to", "not what was used after")
	c.Flags().BoolVar(&explain, "explain", false, "print the arithmetic of the bill line by line")
	return c
}

// wholeReport is a report with the entries of all its pages.
func wholeReport(ctx context.Context, cl *client.Client, f client.UsageFilter) (api.UsageReport, error) {
	whole := api.UsageReport{}
	entries := []api.UsageEntry{}
	for {
		page, next, err := cl.UsageReport(ctx, f)
		if err != nil {
			return whole, err
		}
		whole, entries = page, append(entries, page.Usage...)
		if f.Cursor = next; next == "" {
			whole.Usage = entries
			return whole, nil
		}
	}
}

// printReport prints a line for each sandbox, and one for all.
func (a *app) printReport(r api.UsageReport) error {
	currency := ""
	if r.RateCard != nil {
		currency = r.RateCard.Currency
	}
	rows := [][]cell{head("SANDBOX", "FROM", "ALIVE", "PAUSED", "CPU", "MEMORY", "DISK", "EGRESS", "COST")}
	line := func(name, from string, e api.UsageEntry) {
		cost := "-"
		if e.Cost != nil {
			cost = fmt.Sprintf("%.6f %s", *e.Cost, currency)
		}
		rows = append(rows, []cell{
			text(name), text(from), text(span(seconds(e.WallSeconds))), text(span(seconds(e.PausedSeconds))),
			text(fmt.Sprintf("%.3fs", float64(e.CPUMicros)/1e6)), text(fmt.Sprintf("%.4f GiB-h", e.MemoryGiBSeconds/3600)),
			text(fmt.Sprintf("%.4f GiB-h", e.DiskGiBSeconds/3600)), text(strconv.FormatInt(e.EgressBytes, 10)), text(cost),
		})
	}
	for _, e := range r.Usage {
		line(string(e.SandboxID), e.From.UTC().Format(time.RFC3339), e)
	}
	if len(r.Usage) != 1 {
		line("in all", "", r.Total)
	}
	if err := a.table(rows); err != nil {
		return err
	}
	return a.printBudget(r)
}

// printBudget prints how far the project's budget is used up, if it has one.
func (a *app) printBudget(r api.UsageReport) error {
	b := r.Budget
	if b == nil {
		return nil
	}
	var parts []string
	if b.CPUSeconds != nil {
		parts = append(parts, fmt.Sprintf("%.3f of %.3f CPU-seconds", b.UsedCPUSeconds, *b.CPUSeconds))
	}
	if b.Cost != nil && b.UsedCost != nil && r.RateCard != nil {
		parts = append(parts, fmt.Sprintf("%.6f of %.6f %s", *b.UsedCost, *b.Cost, r.RateCard.Currency))
	}
	_, err := fmt.Fprintf(a.Stdout, "\nThe project has used %s for this %s, which ends %s.\n",
		clean(strings.Join(parts, " and ")), clean(string(b.Period)), b.Until.UTC().Format(time.RFC3339))
	return err
}

// seconds of the API as a duration.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// explain prints how a bill comes about: what was measured, in the unit that is charged,
// times the rate.
func (a *app) explain(id hutch.SandboxID, r api.UsageReport) error {
	what := fmt.Sprintf("%d sandboxes", len(r.Usage))
	if id != "" {
		what = "sandbox " + string(id)
	}
	if len(r.Usage) == 1 {
		e := r.Usage[0]
		what += ", " + e.From.UTC().Format(time.RFC3339Nano) + " to " + e.To.UTC().Format(time.RFC3339Nano)
	}
	t := r.Total
	if _, err := fmt.Fprintf(a.Stdout, "%s\nalive %.3f s, paused %.3f s of that (memory and disk count, CPU does not run)\n\n",
		clean(what), t.WallSeconds, t.PausedSeconds); err != nil {
		return err
	}
	if err := a.table(billRows(r)); err != nil {
		return err
	}
	if r.RateCard == nil {
		if _, err := io.WriteString(a.Stdout, "\nThe server has no rate card, so nothing of it costs anything: see `hutch serve --rate-card`.\n"); err != nil {
			return err
		}
	}
	return a.printBudget(r)
}

// billRows is the table of a bill.
func billRows(r api.UsageReport) [][]cell {
	t := r.Total
	used := hutch.UsageTotal{
		CPU:            time.Duration(t.CPUMicros) * time.Microsecond,
		MemoryGiBHours: t.MemoryGiBSeconds / 3600, DiskGiBHours: t.DiskGiBSeconds / 3600, EgressBytes: t.EgressBytes,
	}
	measured := map[string]string{
		"cpu":    fmt.Sprintf("%.6f s / 3600", used.CPU.Seconds()),
		"memory": fmt.Sprintf("%.6f GiB-s / 3600", t.MemoryGiBSeconds),
		"disk":   fmt.Sprintf("%.6f GiB-s / 3600", t.DiskGiBSeconds),
		"egress": fmt.Sprintf("%d B / 2^30", t.EgressBytes),
	}
	var card hutch.RateCard
	if c := r.RateCard; c != nil {
		card = hutch.RateCard{Currency: c.Currency, CPUHour: c.CPUHour, MemoryGiBHour: c.MemoryGiBHour, DiskGiBHour: c.DiskGiBHour, EgressGiB: c.EgressGiB}
	}
	rows := [][]cell{}
	for _, l := range card.Bill(used) {
		row := []cell{text(l.What), text(measured[l.What]), text(fmt.Sprintf("= %.6f %s", l.Amount, l.Unit))}
		if r.RateCard != nil {
			row = append(row, text("x "+number(l.Rate)+" "+card.Currency), text(fmt.Sprintf("= %.6f %s", l.Cost, card.Currency)))
		}
		rows = append(rows, row)
	}
	if t.Cost != nil {
		rows = append(rows, []cell{{"total", bold}, {}, {}, {}, {clean(fmt.Sprintf("= %.6f %s", *t.Cost, card.Currency)), bold}})
	}
	return rows
}

// timeFlag takes an instant, or how long ago it was.
type timeFlag struct{ t time.Time }

func (f *timeFlag) String() string {
	if f.t.IsZero() {
		return ""
	}
	return f.t.Format(time.RFC3339)
}

func (*timeFlag) Type() string { return "time" }

// Set implements pflag.Value.
func (f *timeFlag) Set(s string) error {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		f.t = t
		return nil
	}
	d, err := parseDuration(s)
	if err != nil {
		return fmt.Errorf("%q: want a time like 2026-01-02T15:04:05Z, or how long ago it was, like 90s, 30m, 2h or 1d", s)
	}
	f.t = time.Now().Add(-d)
	return nil
}
