package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// formatVersion of a report's JSON. A report of another version is refused.
const formatVersion = 1

// Report is what a benchmark came to, with everything it takes to check it.
type Report struct {
	Format     int        `json:"format"`
	Kind       string     `json:"kind"` // "create", "exec", "files" or "terminals"
	Conditions Conditions `json:"conditions"`
	Settings   Settings   `json:"settings"`
	Stopped    string     `json:"stopped,omitempty"` // why it ended early
	Summary    Summary    `json:"summary"`
	Verdict    *Verdict   `json:"verdict,omitempty"`  // only of a create with a floor
	Verdicts   []Verdict  `json:"verdicts,omitempty"` // only of files with a floor: up and down
	Peaks      []Peak     `json:"peaks,omitempty"`    // only of files: the server's memory, small files first
	Runs       []Run      `json:"runs"`
}

// Verdict says whether the platform costs no more than [Limit], or [FileLimit].
type Verdict struct {
	Metric     string  `json:"metric"`
	Limit      float64 `json:"limit"`
	P50        bool    `json:"p50_within"`
	P95        bool    `json:"p95_within"`
	PairMedian bool    `json:"pair_median_within"`
}

func newReport(kind string, s Settings) *Report {
	return &Report{Format: formatVersion, Kind: kind, Settings: s}
}

// finish fills in what the runs come to. err is why there are no more of them; it is
// returned.
func (r *Report) finish(runs []Run, err error) (*Report, error) {
	r.Runs = runs
	if err != nil {
		r.Stopped = err.Error()
	}
	r.Summary, r.Verdict, r.Verdicts = summarise(runs), nil, nil
	for _, x := range r.Summary.Ratios {
		switch {
		case r.Kind == "create" && x.Metric == MetricFirstOutput:
			v := x.within(Limit)
			r.Verdict = &v
		case r.Kind == "files" && (x.Metric == MetricUpload || x.Metric == MetricDownload):
			r.Verdicts = append(r.Verdicts, x.within(FileLimit))
		}
	}
	return r, err
}

func (x Ratio) within(limit float64) Verdict {
	return Verdict{Metric: x.Metric, Limit: limit, P50: x.P50 <= limit, P95: x.P95 <= limit, PairMedian: x.PairMedian <= limit}
}

// Check says whether the summary is what the runs come to.
func (r *Report) Check() error {
	again := *r
	if _, err := again.finish(r.Runs, nil); err != nil {
		return err
	}
	if !reflect.DeepEqual(again.Summary, r.Summary) || !reflect.DeepEqual(again.Verdict, r.Verdict) || !reflect.DeepEqual(again.Verdicts, r.Verdicts) {
		return errors.New("the summary is not what the runs come to: the file was changed, or another version wrote it; measure again")
	}
	return nil
}

// Write writes the report as JSON, a run a line.
func (r *Report) Write(w io.Writer) error {
	runs := r.Runs
	if runs == nil {
		runs = []Run{}
	}
	head := *r
	head.Runs = []Run{}
	b, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	const tail = "[]\n}" // of the indented report, whose last field is the list of runs
	if string(b[len(b)-len(tail):]) != tail {
		return errors.New("encode report: the list of runs is not where it should be")
	}
	out := b[:len(b)-len(tail)]
	out = append(out, '[')
	for i, run := range runs {
		line, err := json.Marshal(run)
		if err != nil {
			return fmt.Errorf("encode report: %w", err)
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, "\n    "...), line...)
	}
	_, err = w.Write(append(out, "\n  ]\n}\n"...))
	return err
}

// Read reads a report and checks it.
func Read(in io.Reader) (*Report, error) {
	var r Report
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return nil, fmt.Errorf("decode report: %w", err)
	}
	if r.Format != formatVersion {
		return nil, fmt.Errorf("the report has format %d, this version of hutch reads %d: measure again", r.Format, formatVersion)
	}
	return &r, r.Check()
}
