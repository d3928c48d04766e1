package bench

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Unit is what the values of a sample are numbers of.
type Unit string

// The units of samples. Rates and shares are whole numbers of small parts, so that what is
// in a file is what was counted.
const (
	Microseconds Unit = "us"
	Bytes        Unit = "bytes"
	Count        Unit = "count"
	PerKilosec   Unit = "per_1000s" // so many in a thousand seconds
	CPUShare     Unit = "cpu_ppm"   // millionths of one CPU
)

// Sample is values of one metric: times, sizes or counts that were measured in one phase of
// a benchmark, in the order in which they came. It is what a benchmark of many sandboxes
// is made of, where runs are not made in pairs.
type Sample struct {
	Phase   string  `json:"phase"`
	Subject string  `json:"subject"`
	Round   int     `json:"round,omitempty"` // from 1, where subjects take turns in rounds
	Metric  string  `json:"metric"`
	Unit    Unit    `json:"unit"`
	Values  []int64 `json:"values"`
}

// Fault is something that went wrong. Nothing is tried again.
type Fault struct {
	Phase   string `json:"phase"`
	Subject string `json:"subject"`
	Error   string `json:"error"`
}

// Figure is what the samples of a metric come to.
type Figure struct {
	Phase   string `json:"phase"`
	Metric  string `json:"metric"`
	Subject string `json:"subject"`
	Unit    Unit   `json:"unit"`
	Dist    Dist   `json:"dist"`
}

// Claim is something that we hold ourselves to, and what was measured of it.
type Claim struct {
	What    string  `json:"what"`
	Value   float64 `json:"value"`
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least,omitempty"` // the value must not be below the limit, rather than not above it
	Unit    string  `json:"unit,omitempty"`     // of both, for a reader
	Within  bool    `json:"within"`
}

func atMost(what string, value, limit float64, unit string) Claim {
	value = round3(value)
	return Claim{What: what, Value: value, Limit: limit, Unit: unit, Within: value <= limit}
}

func atLeast(what string, value, limit float64) Claim {
	value = round3(value)
	return Claim{What: what, Value: value, Limit: limit, AtLeast: true, Within: value >= limit}
}

// book collects samples and faults. It may be written to from several goroutines.
type book struct {
	mu      sync.Mutex
	samples []Sample
	faults  []Fault
}

// page is where one round of one subject in one phase is booked.
type page struct {
	b       *book
	phase   string
	subject string
	round   int
}

func (b *book) page(phase, subject string, round int) page {
	return page{b: b, phase: phase, subject: subject, round: round}
}

func (p page) add(metric string, u Unit, values ...int64) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	s := p.sample(metric, u)
	s.Values = append(s.Values, values...)
}

// reserve makes room for n values, so that adding them takes no memory.
func (p page) reserve(metric string, u Unit, n int) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	s := p.sample(metric, u)
	s.Values = slices.Grow(s.Values, n)
}

// sample is where the values of a metric are. p.b.mu must be held.
func (p page) sample(metric string, u Unit) *Sample {
	i := slices.IndexFunc(p.b.samples, func(s Sample) bool {
		return s.Phase == p.phase && s.Subject == p.subject && s.Round == p.round && s.Metric == metric
	})
	if i < 0 {
		i = len(p.b.samples)
		p.b.samples = append(p.b.samples, Sample{Phase: p.phase, Subject: p.subject, Round: p.round, Metric: metric, Unit: u})
	}
	return &p.b.samples[i]
}

func (p page) time(metric string, d time.Duration) { p.add(metric, Microseconds, d.Microseconds()) }

// times books what a run's clock has.
func (p page) times(c *clock) {
	for metric, us := range c.us {
		p.add(metric, Microseconds, us)
	}
}

func (p page) fault(format string, args ...any) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.b.faults = append(p.b.faults, Fault{Phase: p.phase, Subject: p.subject, Error: fmt.Sprintf(format, args...)})
}

// hopeless says why to give up, once so many faults have come of a phase that there will be
// nothing else.
func (b *book) hopeless(phase string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, last := 0, ""
	for _, f := range b.faults {
		if f.Phase == phase {
			n, last = n+1, f.Error
		}
	}
	if n < maxInARow {
		return nil
	}
	return fmt.Errorf("%d things went wrong (%s), the last one: %s", n, phase, last)
}

// figuresOf is what samples come to, in the order in which phases and metrics first come,
// those that a reader looks for first; all rounds of a phase together.
func figuresOf(samples []Sample) []Figure {
	var out []Figure
	values := map[Figure][]int64{}
	var phases []string
	for _, s := range samples {
		if len(s.Values) == 0 {
			continue
		}
		k := Figure{Phase: s.Phase, Metric: s.Metric, Subject: s.Subject, Unit: s.Unit}
		if _, known := values[k]; !known {
			out = append(out, k)
		}
		if !slices.Contains(phases, s.Phase) {
			phases = append(phases, s.Phase)
		}
		values[k] = append(values[k], s.Values...)
	}
	for i, f := range out {
		out[i].Dist = distOf(values[f])
	}
	slices.SortStableFunc(out, func(a, b Figure) int {
		if c := slices.Index(phases, a.Phase) - slices.Index(phases, b.Phase); c != 0 {
			return c
		}
		if c := compareMetrics(a.Metric, b.Metric); c != 0 {
			return c
		}
		return strings.Compare(b.Subject, a.Subject) // hutch before floor
	})
	return out
}

// figures finds what was measured of a metric.
type figures []Figure

func (fs figures) of(phase, metric, subject string) (Dist, bool) {
	i := slices.IndexFunc(fs, func(f Figure) bool { return f.Phase == phase && f.Metric == metric && f.Subject == subject })
	if i < 0 {
		return Dist{}, false
	}
	return fs[i].Dist, true
}

// phases that have a metric, in their order.
func (fs figures) phases(metric string) []string {
	var out []string
	for _, f := range fs {
		if f.Metric == metric && !slices.Contains(out, f.Phase) {
			out = append(out, f.Phase)
		}
	}
	return out
}
