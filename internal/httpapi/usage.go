package httpapi

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// usage measures a sandbox now.
func (a *API) usage(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	s, err := a.svc.Meter.Usage(r.Context(), project(r), sandboxID(r))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showUsage(s))
}

// percent is a share with as many digits as it deserves.
func percent(f float64) float64 { return math.Round(f*100) / 100 }

func showUsage(s hutch.Sample) api.Usage {
	return api.Usage{
		Time: milli(s.At), CPUs: s.CPUs, CPUPercent: percent(s.CPUPercent), MemoryBytes: s.Memory,
		MemoryMaxBytes: s.MemoryMax, DiskBytes: s.Disk, DiskMaxBytes: s.DiskMax,
	}
}

// processMetrics is usage under the compatible API's names.
func (a *API) processMetrics(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	sb, err := a.alive(r)
	if err != nil {
		return err
	}
	s, err := a.svc.Meter.Usage(r.Context(), project(r), sb.ID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.ProcessMetrics{
		UptimeSeconds: max(0, s.At.Sub(sb.StartedAt).Round(time.Millisecond).Seconds()), HostCPUPercent: percent(s.CPUPercent), HostRSSBytes: s.Memory,
	})
}

// seriesQuery is which part of the past a series is about.
type seriesQuery struct {
	from, to time.Time
	step     time.Duration
}

// Samples are taken every 5 s and kept for an hour, so no series is longer.
const (
	seriesReach = time.Hour
	sampleEvery = 5 * time.Second
)

func (q *query) series(now time.Time) seriesQuery {
	out := seriesQuery{from: q.instant("from", now.Add(-seriesReach)), to: q.instant("to", now), step: 15 * time.Second}
	if s := q.str("step"); s != "" {
		d, err := time.ParseDuration(s)
		if (err != nil || d < sampleEvery || d > seriesReach) && q.err == nil {
			q.err = hutch.FieldErrorf("step", "must be between 5s and 1h, like 15s or 1m")
		}
		out.step = d
	}
	if !out.to.After(out.from) && q.err == nil {
		q.err = hutch.FieldErrorf("to", "must be after from")
	}
	return out
}

// instant reads a time, as RFC 3339 or as seconds since 1970.
func (q *query) instant(name string, def time.Time) time.Time {
	s := q.str(name)
	if s == "" {
		return def
	}
	t, err := time.Parse(time.RFC3339, s)
	if n, numErr := strconv.ParseInt(s, 10, 64); numErr == nil && n >= 0 && n < 1<<40 {
		t, err = time.Unix(n, 0), nil
	}
	// Answers repeat it, and JSON has no other years.
	if year := t.UTC().Year(); err == nil && year >= 1 && year <= 9999 {
		return t
	}
	if q.err == nil {
		q.err = hutch.FieldErrorf(name, "must be a time like 2026-01-02T15:04:05Z, or seconds since 1970")
	}
	return def
}

func (a *API) sandboxSeries(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := q.series(time.Now())
	if err := q.check(); err != nil {
		return err
	}
	sum := newSeries(want)
	if err := a.addSamples(r.Context(), sum, project(r), sandboxID(r)); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, sum.show())
}

// overviewSeries is the sum of a project's sandboxes that live.
func (a *API) overviewSeries(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := q.series(time.Now())
	if err := q.check(); err != nil {
		return err
	}
	sum := newSeries(want)
	list := hutch.SandboxQuery{Project: project(r), States: []hutch.State{hutch.StateRunning, hutch.StatePaused}, Limit: maxPage}
	for {
		page, next, err := a.svc.Sandboxes.ListSandboxes(r.Context(), list)
		if err != nil {
			return err
		}
		for _, sb := range page {
			err := a.addSamples(r.Context(), sum, project(r), sb.ID)
			if err != nil && !errors.Is(err, hutch.ErrSandboxGone) && !errors.Is(err, hutch.ErrNotFound) {
				return err
			}
		}
		if list.Cursor = next; next == "" {
			return writeJSON(w, http.StatusOK, sum.show())
		}
	}
}

func (a *API) addSamples(ctx context.Context, sum *series, p hutch.ProjectID, id hutch.SandboxID) error {
	samples, err := a.svc.Meter.Samples(ctx, p, id, sum.want.from, sum.want.to)
	if err == nil {
		sum.add(samples)
	}
	return err
}

// series sums samples of several sandboxes into steps.
type series struct {
	want  seriesQuery
	steps []api.Point
}

// maxSteps bounds a series: an hour of the shortest steps.
const maxSteps = int(seriesReach/sampleEvery) + 1

func newSeries(want seriesQuery) *series {
	if earliest := want.to.Add(-time.Duration(maxSteps-1) * want.step); want.from.Before(earliest) {
		want.from = earliest
	}
	want.from = want.from.Truncate(want.step)
	return &series{want: want}
}

// add averages one sandbox's samples over each step and adds that to the sums.
func (s *series) add(samples []hutch.Sample) {
	if s.steps == nil {
		n := min(int(s.want.to.Sub(s.want.from)/s.want.step)+1, maxSteps+1)
		s.steps = make([]api.Point, n)
	}
	for len(samples) > 0 {
		i := int(samples[0].At.Sub(s.want.from) / s.want.step)
		n, cpu, memory, disk := 0, 0.0, int64(0), int64(0)
		for n < len(samples) && int(samples[n].At.Sub(s.want.from)/s.want.step) == i {
			cpu, memory, disk = cpu+samples[n].CPUPercent, memory+samples[n].Memory, disk+samples[n].Disk
			n++
		}
		if i >= 0 && i < len(s.steps) && !samples[0].At.Before(s.want.from) {
			p := &s.steps[i]
			p.Sandboxes++
			p.CPUPercent += cpu / float64(n)
			p.MemoryBytes += memory / int64(n)
			p.DiskBytes += disk / int64(n)
		}
		samples = samples[n:]
	}
}

// show is the steps in which there was something.
func (s *series) show() api.Series {
	out := api.Series{From: milli(s.want.from), To: milli(s.want.to), StepSeconds: s.want.step.Seconds(), Series: []api.Point{}}
	for i, p := range s.steps {
		if p.Sandboxes > 0 {
			p.CPUPercent = percent(p.CPUPercent)
			p.Time = milli(s.want.from.Add(time.Duration(i) * s.want.step))
			out.Series = append(out.Series, p)
		}
	}
	return out
}

func (a *API) bootStats(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	stats, err := a.svc.Meter.BootStats(r.Context(), project(r))
	if err != nil {
		return err
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	out := api.BootStats{Stats: make([]api.BootStat, 0, len(stats))}
	for _, s := range stats {
		out.Stats = append(out.Stats, api.BootStat{
			Template: s.Template, BootMode: s.Mode, Count: s.Count,
			P50MS: ms(s.P50), P95MS: ms(s.P95), P99MS: ms(s.P99), MaxMS: ms(s.Max),
		})
	}
	return writeJSON(w, http.StatusOK, out)
}
