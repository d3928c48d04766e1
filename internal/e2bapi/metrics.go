package e2bapi

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// metricView is the use of a sandbox at one instant; memory and disk in bytes.
type metricView struct {
	Timestamp string  `json:"timestamp"`
	Unix      int64   `json:"timestampUnix"`
	CPUCount  int     `json:"cpuCount"`
	CPUUsed   float64 `json:"cpuUsedPct"`
	MemUsed   int64   `json:"memUsed"`
	MemTotal  int64   `json:"memTotal"`
	MemCache  int64   `json:"memCache"`
	DiskUsed  int64   `json:"diskUsed"`
	DiskTotal int64   `json:"diskTotal"`
}

func showSample(s hutch.Sample) metricView {
	return metricView{
		Timestamp: showTime(s.At), Unix: s.At.Unix(), CPUCount: s.CPUs,
		// Ours is of one CPU, theirs of all that the sandbox has.
		CPUUsed: s.CPUPercent / float64(max(1, s.CPUs)),
		MemUsed: s.Memory, MemTotal: s.MemoryMax, DiskUsed: s.Disk, DiskTotal: s.DiskMax,
	}
}

func (a *API) metricsOf(w http.ResponseWriter, c call) error {
	from, err := unixParam(c.URL.Query(), "start")
	if err != nil {
		return err
	}
	to, err := unixParam(c.URL.Query(), "end")
	if err != nil {
		return err
	}
	if !to.IsZero() {
		to = to.Add(time.Second - 1) // the whole of that second
	}
	if _, err := a.shown(c); err != nil {
		return err
	}
	samples, err := a.svc.Usage.Samples(c.Context(), c.key.Project, c.sandbox(), from, to)
	if err != nil {
		return err
	}
	out := make([]metricView, 0, len(samples))
	for _, s := range samples {
		out = append(out, showSample(s))
	}
	return ok(w, http.StatusOK, out)
}

// unixParam reads a query parameter in seconds since 1970.
func unixParam(v url.Values, name string) (time.Time, error) {
	s := v.Get(name)
	if s == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, hutch.FieldErrorf(name, "must be seconds since 1970")
	}
	return time.Unix(n, 0), nil
}

// maxMany is how many sandboxes one call may ask about.
const maxMany = 100

// metricsOfMany answers with the present use of several sandboxes; those that are not there
// are left out.
func (a *API) metricsOfMany(w http.ResponseWriter, c call) error {
	ids := strings.Split(c.URL.Query().Get("sandbox_ids"), ",")
	if len(ids) > maxMany || ids[0] == "" {
		return hutch.FieldErrorf("sandbox_ids", "must be 1 to %d ids, joined by commas", maxMany)
	}
	out := make(map[hutch.SandboxID]metricView, len(ids))
	for _, s := range ids {
		sample, err := a.svc.Usage.Usage(c.Context(), c.key.Project, sandboxID(s))
		switch {
		case errors.Is(err, hutch.ErrNotFound), errors.Is(err, hutch.ErrSandboxGone), errors.Is(err, hutch.ErrInvalidState):
			continue
		case err != nil:
			return err
		}
		out[sandboxID(s)] = showSample(sample)
	}
	return ok(w, http.StatusOK, map[string]any{"sandboxes": out})
}
