package hutch

import "time"

// Usage is what a sandbox used in one interval. Intervals of a sandbox do not overlap, and
// leave no hole between its start and its end: where nothing could be measured, nothing was
// used and State says why.
type Usage struct {
	Project ProjectID
	Sandbox SandboxID
	From    time.Time
	To      time.Time
	State   State // StateRunning or StatePaused
	// CPU is the processor time of the whole sandbox, its kernel included. A paused one has
	// none.
	CPU time.Duration
	// Memory is its working set, in bytes, on average over the interval: what the host
	// could not take back without stopping it.
	Memory int64
	// Disk is the bytes of its writable layer, on average over the interval.
	Disk int64
	// Egress is the bytes it sent out through the gateway.
	Egress int64
}

// Clip returns the part of u that lies between from and to, its amounts in proportion. Zero
// times are no bounds. The second result is false if there is no such part.
func (u Usage) Clip(from, to time.Time) (Usage, bool) {
	whole := u.To.Sub(u.From)
	if !from.IsZero() && u.From.Before(from) {
		u.From = from
	}
	if !to.IsZero() && u.To.After(to) {
		u.To = to
	}
	part := u.To.Sub(u.From)
	if part <= 0 || whole <= 0 {
		return Usage{}, false
	}
	if part < whole {
		share := float64(part) / float64(whole)
		u.CPU = time.Duration(float64(u.CPU) * share)
		u.Egress = int64(float64(u.Egress) * share)
	}
	return u, true
}

// UsageTotal is the sum of intervals.
type UsageTotal struct {
	Wall           time.Duration // how long it existed, running or paused
	Paused         time.Duration // of Wall
	CPU            time.Duration
	MemoryGiBHours float64 // working set over time
	DiskGiBHours   float64
	EgressBytes    int64
}

// Add adds an interval.
func (t *UsageTotal) Add(u Usage) {
	d := u.To.Sub(u.From)
	t.Wall += d
	if u.State == StatePaused {
		t.Paused += d
	}
	t.CPU += u.CPU
	t.MemoryGiBHours += gibHours(u.Memory, d)
	t.DiskGiBHours += gibHours(u.Disk, d)
	t.EgressBytes += u.Egress
}

// SandboxUsage is what one sandbox used between two instants.
type SandboxUsage struct {
	Project ProjectID
	Sandbox SandboxID
	From    time.Time // of the first interval in Total, as it was cut
	To      time.Time // of the last
	Total   UsageTotal
}

func gibHours(bytes int64, d time.Duration) float64 { return float64(bytes) / (1 << 30) * d.Hours() }

// RateCard is what an operator charges. Amounts are in its currency; zero is free.
type RateCard struct {
	Currency      string  `json:"currency"`        // as people write it, "USD"
	CPUHour       float64 `json:"cpu_hour"`        // for an hour of one CPU's active time
	MemoryGiBHour float64 `json:"memory_gib_hour"` // for a GiB of working set for an hour
	DiskGiBHour   float64 `json:"disk_gib_hour"`
	EgressGiB     float64 `json:"egress_gib"`
}

// Charge is one line of a bill: Cost is Amount times Rate.
type Charge struct {
	What   string // "cpu", "memory", "disk", "egress"
	Amount float64
	Unit   string // of Amount: "CPU-hours", "GiB-hours", "GiB"
	Rate   float64
	Cost   float64
}

// Bill is what a total costs, line by line, always in the same order.
func (c RateCard) Bill(t UsageTotal) []Charge {
	lines := []Charge{
		{What: "cpu", Amount: t.CPU.Hours(), Unit: "CPU-hours", Rate: c.CPUHour},
		{What: "memory", Amount: t.MemoryGiBHours, Unit: "GiB-hours", Rate: c.MemoryGiBHour},
		{What: "disk", Amount: t.DiskGiBHours, Unit: "GiB-hours", Rate: c.DiskGiBHour},
		{What: "egress", Amount: float64(t.EgressBytes) / (1 << 30), Unit: "GiB", Rate: c.EgressGiB},
	}
	for i := range lines {
		lines[i].Cost = lines[i].Amount * lines[i].Rate
	}
	return lines
}

// Cost is what a total costs.
func (c RateCard) Cost(t UsageTotal) (sum float64) {
	for _, l := range c.Bill(t) {
		sum += l.Cost
	}
	return sum
}

// Check refuses a card by which nothing could be charged.
func (c RateCard) Check() error {
	if c.Currency == "" || len(c.Currency) > 8 {
		return FieldErrorf("currency", "must have 1 to 8 letters, like USD")
	}
	for name, rate := range map[string]float64{
		"cpu_hour": c.CPUHour, "memory_gib_hour": c.MemoryGiBHour, "disk_gib_hour": c.DiskGiBHour, "egress_gib": c.EgressGiB,
	} {
		if !(rate >= 0 && rate <= maxRate) {
			return FieldErrorf(name, "must be from 0 to %g", float64(maxRate))
		}
	}
	return nil
}

// maxRate is far above any price, and keeps sums of costs finite.
const maxRate = 1e9

// Budget is what a sandbox may use before it is stopped with [EndBudget]. Zero fields are no
// limit.
type Budget struct {
	CPU  time.Duration `json:"cpu,omitempty"`
	Cost float64       `json:"cost,omitempty"` // by the operator's rate card
}

// Period is how long a project's budget is for, by the calendar in UTC.
type Period string

// The periods there are.
const (
	PeriodHour  Period = "hour"
	PeriodDay   Period = "day"
	PeriodWeek  Period = "week" // from Monday
	PeriodMonth Period = "month"
)

// Valid reports whether p is one of the above.
func (p Period) Valid() bool {
	return p == PeriodHour || p == PeriodDay || p == PeriodWeek || p == PeriodMonth
}

// Span returns the one of p's periods that t is in: from its first instant to the first of the
// next. One that is not valid has none.
func (p Period) Span(t time.Time) (from, until time.Time) {
	t = t.UTC()
	switch p {
	case PeriodHour:
		from = t.Truncate(time.Hour)
		until = from.Add(time.Hour)
	case PeriodDay:
		from = t.Truncate(24 * time.Hour)
		until = from.AddDate(0, 0, 1)
	case PeriodWeek: // the zero time, which Truncate counts from, is a Monday
		from = t.Truncate(7 * 24 * time.Hour)
		until = from.AddDate(0, 0, 7)
	case PeriodMonth:
		from = time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
		until = from.AddDate(0, 1, 0)
	}
	return from, until
}

// ProjectBudget is what all sandboxes of a project may use together in each period. When it is
// used up they are stopped with [EndBudget], and no more are made before the next period.
type ProjectBudget struct {
	Budget
	Period Period
}

// EveryProject stands for each project that is not named, where budgets are set.
const EveryProject ProjectID = "*"

// BudgetState is how far a project's budget is used up.
type BudgetState struct {
	ProjectBudget
	From  time.Time // of the period that it is now
	Until time.Time // when the next begins
	Used  UsageTotal
}

// UsageBy is what a [UsageReport] has an entry for.
type UsageBy string

// What there may be an entry for.
const (
	UsageByInterval UsageBy = "interval" // also where nothing is said
	UsageBySandbox  UsageBy = "sandbox"
	UsageByProject  UsageBy = "project" // one entry, which is the total
)

// Valid reports whether b is one of the above.
func (b UsageBy) Valid() bool {
	return b == UsageByInterval || b == UsageBySandbox || b == UsageByProject
}

// UsageReport is one page of what was used, and the sum of all pages, as of one instant.
type UsageReport struct {
	Intervals []Usage        // by interval, cut at the bounds of the query
	Sandboxes []SandboxUsage // by sandbox
	Next      string         // the cursor of the next page, empty on the last
	Total     UsageTotal
	// Budget is the project's, for the period that it is now, whatever was asked for; nil = it
	// has none.
	Budget *BudgetState
}

// UsageQuery asks for one page of what a project used, oldest first.
type UsageQuery struct {
	Project ProjectID
	Sandbox SandboxID // empty = all of the project
	By      UsageBy   // empty = by interval
	From    time.Time // zero times are no bounds; intervals are cut at them
	To      time.Time
	Cursor  string // from the previous page; empty = the first
	Limit   int    // 0 = 100
}
