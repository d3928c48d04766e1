package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
)

// formatVersion of a report's JSON. A report of another version is refused.
const formatVersion = 1

// Report is what a benchmark came to, with everything it takes to check it.
type Report struct {
	Format     int        `json:"format"`
	Kind       string     `json:"kind"` // the command's name
	Conditions Conditions `json:"conditions"`
	Settings   Settings   `json:"settings"`
	Stopped    string     `json:"stopped,omitempty"` // why it ended early
	Summary    Summary    `json:"summary"`
	Verdict    *Verdict   `json:"verdict,omitempty"`  // only of a create with a floor
	Verdicts   []Verdict  `json:"verdicts,omitempty"` // only of files with a floor: up and down
	Peaks      []Peak     `json:"peaks,omitempty"`    // only of files: the server's memory, small files first
	Figures    []Figure   `json:"figures,omitempty"`  // of samples
	Claims     []Claim    `json:"claims,omitempty"`   // what is held of figures
	Faults     []Fault    `json:"faults,omitempty"`   // what went wrong, beside samples
	// Alternatives are what else was to be measured, those left out too.
	Alternatives []Alternative `json:"alternatives,omitempty"`
	Samples      []Sample      `json:"samples,omitempty"`
	Runs         []Run         `json:"runs"`
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
		case x.Of != "": // limits are in multiples of the floor
		case r.Kind == "create" && x.Metric == MetricFirstOutput:
			v := x.within(Limit)
			r.Verdict = &v
		case r.Kind == "files" && (x.Metric == MetricUpload || x.Metric == MetricDownload):
			r.Verdicts = append(r.Verdicts, x.within(FileLimit))
		}
	}
	r.weigh()
	return r, err
}

// conclude fills in what samples come to. err is why there are no more of them; it is
// returned.
func (r *Report) conclude(b *book, err error) (*Report, error) {
	r.Samples, r.Faults, r.Summary = b.samples, b.faults, summarise(nil)
	if err != nil {
		r.Stopped = err.Error()
	}
	r.weigh()
	return r, err
}

// weigh makes figures of the samples, and claims of what there is.
func (r *Report) weigh() {
	r.Figures, r.Claims = figuresOf(r.Samples), nil
	switch fs := figures(r.Figures); r.Kind {
	case "density":
		r.Claims = densityClaims(r.Settings, fs)
	case "creates":
		r.Claims = createsClaims(fs)
	case "siege":
		r.Claims = siegeClaims(fs)
	case "exec":
		r.Claims = execClaims(r.Summary)
	case "create":
		r.Claims = podmanClaims(r.Summary)
	case "prepared":
		r.Claims = slices.Concat(preparedClaims(r.Summary), podmanClaims(r.Summary))
	case "cycles":
		r.Claims = cyclesClaims(r.Settings, fs)
	}
}

// Broken names the claims that do not hold, with what was measured.
func (r *Report) Broken() []string {
	var out []string
	for _, c := range r.Claims {
		if !c.Within {
			out = append(out, fmt.Sprintf("%s is %s, not %s", c.What, amount(c.Value, c.Unit), c.bound()))
		}
	}
	return out
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
	same := reflect.DeepEqual(again.Summary, r.Summary) && reflect.DeepEqual(again.Verdict, r.Verdict) && reflect.DeepEqual(again.Verdicts, r.Verdicts)
	if !same || !slices.Equal(again.Figures, r.Figures) || !slices.Equal(again.Claims, r.Claims) {
		return errors.New("the summary is not what the runs come to: the file was changed, or another version wrote it; measure again")
	}
	return nil
}

// Write writes the report as JSON, a run and a sample a line.
func (r *Report) Write(w io.Writer) error {
	head := *r
	head.Runs, head.Samples = []Run{}, nil
	b, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	out, ok := bytes.CutSuffix(b, []byte(`"runs": []`+"\n}")) // the indented report's last field
	if !ok {
		return errors.New("encode report: the list of runs is not where it should be")
	}
	if len(r.Samples) > 0 {
		if out, err = appendLines(append(out, `"samples": `...), r.Samples); err != nil {
			return err
		}
		out = append(out, ",\n  "...)
	}
	if out, err = appendLines(append(out, `"runs": `...), r.Runs); err != nil {
		return err
	}
	_, err = w.Write(append(out, "\n}\n"...))
	return err
}

// appendLines appends a list with an element a line.
func appendLines[T any](out []byte, all []T) ([]byte, error) {
	out = append(out, '[')
	for i, v := range all {
		line, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode report: %w", err)
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, "\n    "...), line...)
	}
	return append(out, "\n  ]"...), nil
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
