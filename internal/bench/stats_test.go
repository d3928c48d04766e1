package bench

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func upTo(n int) []int64 {
	var out []int64
	for i := range n {
		out = append(out, int64(i+1))
	}
	return out
}

// TestDistOf holds percentiles against vectors with known answers.
func TestDistOf(t *testing.T) {
	tests := map[string]struct {
		in   []int64
		want Dist
	}{
		"none": {nil, Dist{}},
		"one":  {[]int64{7}, Dist{N: 1, Min: 7, P50: 7, P95: 7, P99: 7, Max: 7}},
		"two":  {[]int64{9, 3}, Dist{N: 2, Min: 3, P50: 3, P95: 9, P99: 9, Max: 9}},
		// The textbook's example of the nearest-rank method.
		"five":         {[]int64{50, 15, 40, 20, 35}, Dist{N: 5, Min: 15, P50: 35, P95: 50, P99: 50, Max: 50}},
		"twenty":       {upTo(20), Dist{N: 20, Min: 1, P50: 10, P95: 19, P99: 20, Max: 20}},
		"a hundred":    {upTo(100), Dist{N: 100, Min: 1, P50: 50, P95: 95, P99: 99, Max: 100}},
		"a hundred 1":  {upTo(101), Dist{N: 101, Min: 1, P50: 51, P95: 96, P99: 100, Max: 101}},
		"two hundred":  {upTo(200), Dist{N: 200, Min: 1, P50: 100, P95: 190, P99: 198, Max: 200}},
		"all the same": {[]int64{4, 4, 4}, Dist{N: 3, Min: 4, P50: 4, P95: 4, P99: 4, Max: 4}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := slices.Clone(tt.in)
			rand.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
			before := slices.Clone(in)
			if got := distOf(in); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if !slices.Equal(in, before) {
				t.Error("the times were changed")
			}
		})
	}
}

// TestRank holds every percentile against the definition: the smallest value that at
// least p per cent of all are no larger than.
func TestRank(t *testing.T) {
	for n := 1; n <= 250; n++ {
		s := upTo(n)
		for p := 1; p <= 100; p++ {
			got := rank(s, p)
			if share := got * 100; share < int64(p*n) {
				t.Fatalf("n %d, p%d: %d has too few below it", n, p, got)
			}
			if share := (got - 1) * 100; got > 1 && share >= int64(p*n) {
				t.Fatalf("n %d, p%d: %d is not the smallest", n, p, got)
			}
		}
	}
}

func run(subject string, pair int, us int64) Run {
	return Run{Subject: subject, Pair: pair, US: map[string]int64{MetricFirstOutput: us}}
}

func TestSummarise(t *testing.T) {
	runs := []Run{
		run(SubjectHutch, 1, 120), run(SubjectFloor, 1, 100), // 1.2
		run(SubjectFloor, 2, 50), run(SubjectHutch, 2, 100), // 2.0
		run(SubjectHutch, 3, 300), run(SubjectFloor, 3, 200), // 1.5
		run(SubjectFloor, 4, 10), {Subject: SubjectHutch, Pair: 4, Error: "no", US: map[string]int64{MetricFirstOutput: 1}},
	}
	got := summarise(runs)
	want := Summary{
		Rows: []Row{
			{MetricFirstOutput, SubjectHutch, Dist{N: 3, Min: 100, P50: 120, P95: 300, P99: 300, Max: 300}},
			{MetricFirstOutput, SubjectFloor, Dist{N: 4, Min: 10, P50: 50, P95: 200, P99: 200, Max: 200}},
		},
		Ratios: []Ratio{{Metric: MetricFirstOutput, P50: 2.4, P95: 1.5, P99: 1.5, PairMedian: 1.5, Pairs: 3}},
		Failed: map[string]int{SubjectHutch: 1, SubjectFloor: 0},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestSummariseSeries: runs of different kinds with one number are no pair.
func TestSummariseSeries(t *testing.T) {
	a, b := run(SubjectHutch, 1, 100), run(SubjectFloor, 1, 10)
	a.Series, b.Series = "one", "another"
	if got := summarise([]Run{a, b}).Ratios; got != nil {
		t.Errorf("got %+v, want no ratio", got)
	}
}

// TestSummariseStages: the server's own stages are shown, and compared with nothing.
func TestSummariseStages(t *testing.T) {
	runs := []Run{
		{Subject: SubjectHutch, Pair: 1, US: map[string]int64{"stage.machine.child": 5, MetricCreate: 9}},
		{Subject: SubjectFloor, Pair: 1, US: map[string]int64{"stage.machine.child": 5, MetricCreate: 9}},
	}
	s := summarise(runs)
	var names []string
	for _, r := range s.Rows {
		names = append(names, r.Metric)
	}
	if want := []string{MetricCreate, MetricCreate, "stage.machine.child", "stage.machine.child"}; !slices.Equal(names, want) {
		t.Errorf("rows %v, want %v", names, want)
	}
	if len(s.Ratios) != 1 || s.Ratios[0].Metric != MetricCreate {
		t.Errorf("ratios %+v, want one, of %s", s.Ratios, MetricCreate)
	}
}
