package bench

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Dist describes a set of times, in microseconds. Percentiles are nearest-rank: the
// smallest time that at least so many per cent of all are no larger than.
type Dist struct {
	N   int   `json:"n"`
	Min int64 `json:"min"`
	P50 int64 `json:"p50"`
	P95 int64 `json:"p95"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

// distOf describes times, which may be in any order; the zero Dist is of none.
func distOf(times []int64) Dist {
	if len(times) == 0 {
		return Dist{}
	}
	s := slices.Sorted(slices.Values(times))
	return Dist{
		N: len(s), Min: s[0], P50: rank(s, 50), P95: rank(s, 95), P99: rank(s, 99), Max: s[len(s)-1],
	}
}

// rank returns the nearest-rank percentile p, from 1 to 100, of sorted values.
func rank[T any](sorted []T, p int) T {
	n := (p*len(sorted) + 99) / 100 // rounded up
	return sorted[max(n, 1)-1]
}

// Row is one line of a summary.
type Row struct {
	Metric  string `json:"metric"`
	Subject string `json:"subject"`
	US      Dist   `json:"us"`
}

// Ratio compares a metric of two subjects: hutch's over the other's.
type Ratio struct {
	Metric string  `json:"metric"`
	Of     string  `json:"of,omitempty"` // the other subject; empty = the floor
	P50    float64 `json:"p50"`          // of the medians
	P95    float64 `json:"p95"`
	P99    float64 `json:"p99"`
	// PairMedian is the median of the ratios within pairs, each of which was measured at
	// nearly the same moment: what holds on a machine that others use too.
	PairMedian float64 `json:"pair_median"`
	Pairs      int     `json:"pairs"`
}

// Summary is what the runs come to.
type Summary struct {
	Rows   []Row          `json:"rows"`
	Ratios []Ratio        `json:"ratios,omitempty"`
	Failed map[string]int `json:"failed"` // runs by subject; 0 is written out
}

// of is what a metric of a subject comes to; the zero Dist if there is none.
func (s Summary) of(metric, subject string) Dist {
	for _, r := range s.Rows {
		if r.Metric == metric && r.Subject == subject {
			return r.US
		}
	}
	return Dist{}
}

// metrics that are shown first, in this order; others follow by name.
var order = []string{
	MetricRate, MetricFirstOutput, MetricPrepared, MetricCreate, MetricFirstExec, MetricKill, MetricWhole,
	MetricRoundTrip, MetricFirstByte, MetricTransfer,
	MetricUpload, MetricDownload, MetricEcho,
	MetricList, MetricRead,
	MetricAnswer, MetricPSS, MetricOwn, MetricShared, MetricRSS, MetricCharge, MetricAvailable,
	MetricDisk, MetricFreeLess, MetricRecords, MetricImage,
	MetricCPUAll, MetricCPUSlice, MetricCPU, MetricCPUMachine, MetricCPUBeside, MetricCPUOurs, MetricHeap, MetricRoutines, MetricProcesses,
}

func compareMetrics(a, b string) int {
	place := func(m string) int {
		if i := slices.Index(order, m); i >= 0 {
			return i
		}
		return len(order)
	}
	return cmp.Or(cmp.Compare(place(a), place(b)), strings.Compare(a, b))
}

// summarise makes the summary of runs.
func summarise(runs []Run) Summary {
	s := Summary{Failed: map[string]int{}}
	times := map[string]map[string][]int64{} // by metric, then subject
	for _, r := range runs {
		s.Failed[r.Subject] += 0
		if r.Error != "" {
			s.Failed[r.Subject]++
			continue
		}
		for m, t := range r.US {
			if times[m] == nil {
				times[m] = map[string][]int64{}
			}
			times[m][r.Subject] = append(times[m][r.Subject], t)
		}
	}
	for _, m := range slices.SortedFunc(maps.Keys(times), compareMetrics) {
		for _, subject := range subjectOrder {
			if t := times[m][subject]; t != nil {
				s.Rows = append(s.Rows, Row{Metric: m, Subject: subject, US: distOf(t)})
			}
		}
		if strings.HasPrefix(m, stagePrefix) {
			continue
		}
		for _, other := range compared {
			if pairs := pairRatios(m, other, runs); len(pairs) > 0 {
				x := ratioOf(distOf(times[m][SubjectHutch]), distOf(times[m][other]), pairs)
				if x.Metric = m; other != SubjectFloor {
					x.Of = other
				}
				s.Ratios = append(s.Ratios, x)
			}
		}
	}
	return s
}

func ratioOf(a, b Dist, pairs []float64) Ratio {
	slices.Sort(pairs)
	return Ratio{
		P50: over(a.P50, b.P50), P95: over(a.P95, b.P95), P99: over(a.P99, b.P99),
		PairMedian: round3(rank(pairs, 50)), Pairs: len(pairs),
	}
}

// pairRatios returns hutch's time over the other subject's for every pair that has both.
func pairRatios(metric, other string, runs []Run) []float64 {
	theirs := map[string]int64{}
	for _, r := range runs {
		if t, ok := r.US[metric]; ok && r.Subject == other && r.Error == "" {
			theirs[r.pairKey()] = t
		}
	}
	var out []float64
	for _, r := range runs {
		t, ok := r.US[metric]
		if !ok || r.Subject != SubjectHutch || r.Error != "" {
			continue
		}
		if f := theirs[r.pairKey()]; f > 0 {
			out = append(out, float64(t)/float64(f))
		}
	}
	return out
}

func over(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return round3(float64(a) / float64(b))
}

// round3 keeps three decimals: more would be noise, in a file that people compare.
func round3(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }
