package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table is text in cells.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) markdown(w *strings.Builder) {
	line := func(cells []string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
	rule := make([]string, len(t.head))
	for i := range rule {
		rule[i] = "---"
	}
	line(t.head)
	line(rule)
	for _, r := range t.rows {
		line(r)
	}
	w.WriteByte('\n')
}

func (t *table) text(w *strings.Builder) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range append([][]string{t.head}, t.rows...) {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(r, "\t"), "\t"))
	}
	_ = tw.Flush() // into memory
	w.WriteByte('\n')
}

// titles say what a metric is to somebody who reads only the table.
var titles = map[string]string{
	MetricCreate:      "create, to running",
	MetricFirstOutput: "create, to first output",
	MetricFirstExec:   "first command, to first output",
	MetricKill:        "kill, to nothing left",
	MetricWhole:       "create, first command and kill",
	MetricRoundTrip:   "`/bin/true`, to its result",
	MetricFirstByte:   "`/bin/echo`, to first output",
	MetricTransfer:    "transfer of %s, streamed",
	MetricUpload:      "upload of %s",
	MetricDownload:    "download of %s",
	MetricEcho:        "keystroke, to its echo",
	MetricPrepared:    "prepared machine, to first output",

	MetricList:  "list its commands",
	MetricRead:  "read a small file in it",
	MetricAnew:  "loads begun anew, over memory, in a round",
	MetricTaken: "sandboxes that ended over their load, in a round",

	MetricAnswer:     "`/bin/echo` in each, to its result",
	MetricPSS:        "memory of a sandbox, PSS",
	MetricOwn:        "of it, the sandbox's alone",
	MetricShared:     "of it, its share of the binary and the images",
	MetricRSS:        "memory of a sandbox, RSS",
	MetricCharge:     "charge of its control group",
	MetricProcesses:  "processes of a sandbox, on the host",
	MetricCPU:        "a sandbox",
	MetricCPUAll:     "all sandboxes together",
	MetricCPUSlice:   "all sandboxes together, by slices of 10 s",
	MetricCPUMachine: "all of the machine, by slices of 10 s",
	MetricCPUBeside:  "of it, other processes that were there before",
	MetricCPUOurs:    "of it, all else: ours, and the kernel's for it",
	MetricRest:       "left alone, until they rested",
	MetricCPUOf:      "the server's process: ",
	MetricPSSOf:      "PSS of the server's process: ",
	MetricAvailable:  "less available on the machine, by sandbox",
	MetricDisk:       "disk of a sandbox",
	MetricRecords:    "growth of the records, by sandbox",
	MetricImage:      "root image",
	MetricFreeLess:   "less free on the file system, by sandbox",
	MetricHeap:       "heap of the server, collected",
	MetricRoutines:   "goroutines of the server",
	MetricFiles:      "open descriptors: ",
	MetricLeft:       "control groups and directories of sandboxes",
	MetricLeaks:      "what `hutch leaks` prints",
	MetricRate:       "sandboxes made and ended",
}

// titleOf is the title of a metric whose name may end in what it is measured of.
func titleOf(metric string) string {
	if t, ok := titles[metric]; ok {
		return t
	}
	for _, of := range []string{MetricCPUOf, MetricPSSOf, MetricFiles} {
		if name, ok := strings.CutPrefix(metric, of); ok {
			return titles[of] + name
		}
	}
	return metric
}

func (r *Report) title(metric string) string {
	t := titles[metric]
	switch {
	case metric == MetricTransfer:
		return fmt.Sprintf(t, fmt.Sprintf("%d MB", r.Settings.Bytes/1_000_000))
	case isFile(metric):
		return fmt.Sprintf(t, size(r.Settings.Bytes))
	}
	return titleOf(metric)
}

// Text writes the report for a terminal.
func (r *Report) Text(w io.Writer) error { return r.render(w, (*table).text) }

// Markdown writes the report as the section of a page.
func (r *Report) Markdown(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "### hutch bench %s\n\n", r.Kind); err != nil {
		return err
	}
	return r.render(w, (*table).markdown)
}

func (r *Report) render(w io.Writer, show func(*table, *strings.Builder)) error {
	var b strings.Builder
	for _, part := range slices.Concat([]*table{r.rates(), r.results()}, r.ratios(), []*table{r.stages()}, r.figureTables()) {
		if len(part.rows) > 0 {
			show(part, &b)
		}
	}
	for _, s := range r.remarks() {
		b.WriteString(s + "\n\n")
	}
	show(r.conditions(), &b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) results() *table {
	t := &table{head: []string{"ms", "subject", "n", "p50", "p95", "p99", "min", "max"}}
	for _, row := range r.Summary.Rows {
		if !strings.HasPrefix(row.Metric, stagePrefix) {
			t.addDist(r.title(row.Metric), row)
		}
	}
	return t
}

// rates are the results of files, the other way round. p95 is what 95 of 100 transfers are no
// slower than.
func (r *Report) rates() *table {
	t := &table{head: []string{"MB/s", "subject", "n", "p50", "p95", "p99", "slowest", "fastest"}}
	for _, row := range r.Summary.Rows {
		if isFile(row.Metric) {
			d := row.US
			t.add(r.title(row.Metric), row.Subject, fmt.Sprint(d.N), r.rate(d.P50), r.rate(d.P95), r.rate(d.P99), r.rate(d.Max), r.rate(d.Min))
		}
	}
	return t
}

// rate is how fast a file went, in megabytes (10⁶ bytes) a second.
func (r *Report) rate(us int64) string {
	return fmt.Sprintf("%.0f", float64(r.Settings.Bytes)/float64(max(us, 1)))
}

func isFile(metric string) bool { return metric == MetricUpload || metric == MetricDownload }

func size(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

func (r *Report) stages() *table {
	t := &table{head: []string{"stage, ms", "subject", "n", "p50", "p95", "p99", "min", "max"}}
	for _, row := range r.Summary.Rows {
		if name, ok := strings.CutPrefix(row.Metric, stagePrefix); ok {
			t.addDist(name, row)
		}
	}
	return t
}

func (t *table) addDist(name string, row Row) {
	d := row.US
	t.add(name, row.Subject, fmt.Sprint(d.N), ms(d.P50), ms(d.P95), ms(d.P99), ms(d.Min), ms(d.Max))
}

// ratios are a table for each subject that hutch is compared with.
func (r *Report) ratios() []*table {
	var out []*table
	for _, other := range compared {
		t := &table{head: []string{"hutch / " + other, "of p50", "of p95", "of p99", "median of pairs", "pairs"}}
		for _, x := range r.Summary.Ratios {
			if cmp.Or(x.Of, SubjectFloor) == other {
				t.add(r.title(x.Metric), times(x.P50), times(x.P95), times(x.P99), times(x.PairMedian), fmt.Sprint(x.Pairs))
			}
		}
		out = append(out, t)
	}
	return out
}

// remarks are what must be read with the tables.
func (r *Report) remarks() []string {
	var out []string
	verdicts := r.Verdicts
	if r.Verdict != nil {
		verdicts = append(verdicts, *r.Verdict)
	}
	for _, v := range verdicts {
		word := map[bool]string{true: "within", false: "OVER"}
		out = append(out, fmt.Sprintf("Limit for %s: %.1f × the floor. p50: %s, p95: %s, median of pairs: %s.",
			r.title(v.Metric), v.Limit, word[v.P50], word[v.P95], word[v.PairMedian]))
	}
	for _, row := range r.Summary.Rows {
		if row.Metric == MetricTransfer && row.US.P50 > 0 {
			out = append(out, fmt.Sprintf("Transfer, %s: %.0f MB/s at the median.", row.Subject, float64(r.Settings.Bytes)/float64(row.US.P50)))
		}
	}
	for _, p := range r.Peaks {
		out = append(out, fmt.Sprintf("Most memory that the server's process had in use at once, with files of %s: %.1f MiB.", size(p.Bytes), float64(p.KB)/1024))
	}
	for _, a := range r.Alternatives {
		if a.LeftOut != "" {
			out = append(out, fmt.Sprintf("Not measured: %s. %s.", a.Subject, strings.TrimSuffix(a.LeftOut, ".")))
		}
	}
	if r.Stopped != "" {
		out = append(out, "It ended early: "+r.Stopped+".")
	}
	if len(r.Runs) == 0 && len(r.Samples) > 0 {
		return append(out, r.faultRemark())
	}
	return append(out, r.failures())
}

// failures counts failed runs, and shows how the first ones failed.
func (r *Report) failures() string {
	var parts []string
	for _, s := range subjectOrder {
		if n, ok := r.Summary.Failed[s]; ok {
			parts = append(parts, fmt.Sprintf("%s %d", s, n))
		}
	}
	if len(parts) == 0 {
		return "There are no runs."
	}
	text := "Failed runs: " + strings.Join(parts, ", ") + "."
	const most = 3
	shown := 0
	for _, run := range r.Runs {
		if run.Error == "" {
			continue
		}
		if shown++; shown > most {
			return text + " Others are in the raw results."
		}
		text += fmt.Sprintf(" Pair %d, %s: %s.", run.Pair, run.Subject, run.Error)
	}
	return text
}

func (r *Report) conditions() *table {
	c, s := r.Conditions, r.Settings
	t := &table{head: []string{"conditions", ""}}
	add := func(name, value string) {
		if strings.Trim(value, " ,") != "" {
			t.add(name, value)
		}
	}
	whose := ""
	if c.Remote {
		whose = "caller's "
	}
	add("date", c.Date.Format("2006-01-02 15:04 MST"))
	add(whose+"versions", strings.Join(nonEmpty("hutch "+c.Hutch, "gVisor "+c.GVisor, c.Go), ", "))
	add(whose+"machine", strings.Join(nonEmpty(c.CPU, fmt.Sprintf("%d CPUs", c.Cores), fmt.Sprintf("%d MiB", c.MemoryMB), "Linux "+c.Kernel, "cgroup "+c.Cgroups), ", "))
	add(whose+"load average (1, 5, 15 min)", fmt.Sprintf("before %s; after %s", c.LoadBefore, c.LoadAfter))
	if b := s.Sandbox; b != nil {
		q := b.Resources
		tier := string(q.DiskTier)
		if len(s.Tiers) > 0 {
			tier = "by phase"
		}
		add("sandbox", fmt.Sprintf("template %s (%s), disk tier %s, %g CPUs, %d MiB memory, %d MiB disk, %d pids",
			s.Template, b.Image, tier, float64(q.MilliCPU)/1000, q.MemoryMB, q.DiskMB, q.Pids))
	}
	for _, a := range r.Alternatives {
		if a.LeftOut == "" {
			add(a.Subject, fmt.Sprintf("%s; cold; clock from the start of the process: `%s`", a.Is, a.Command))
		}
	}
	if b := s.Loaded; b != nil {
		q := b.Resources
		add("sandbox with a load", fmt.Sprintf("%g CPUs, %d MiB memory, %d MiB disk, %d pids", float64(q.MilliCPU)/1000, q.MemoryMB, q.DiskMB, q.Pids))
	}
	add("start", c.Start)
	add("runs", s.describe(r.Kind))
	add("clock", c.Clock)
	add("server", c.Server)
	add("API", c.API)
	add("records", strings.Join(nonEmpty(c.Records, c.RecordsFS), ", on "))
	add("network link", c.Link)
	add("root image", c.Image)
	return t
}

func (s Settings) describe(kind string) string {
	text := fmt.Sprintf("%d of each subject, after %d that are not counted", s.N, s.Warmup)
	switch kind {
	case "files":
		text = fmt.Sprintf("%d uploads and downloads of each subject, of %d bytes each, after %d that are not counted", s.N, s.Bytes, s.Warmup)
	case "terminals":
		text = fmt.Sprintf("%d terminals of each subject, all typed into at once, each every %s or so; %d keys in each, after %d that are not counted", s.Terminals, s.keyEvery(), s.N, s.Warmup)
	case "density":
		text = fmt.Sprintf("%d sandboxes on each tier, made %d at once, then left alone until all of them together took less than %g %% of a CPU in %d looks in a row, one each %s, at most %s; CPU over %s, with none alive and then with all; %d creates without and %d beside them, one after the other", s.N, fillAtOnce, 100*IdleCPULimit, calmLooks, s.calmLook(), calmMost*s.calmLook(), s.Window, s.Probes, s.Probes)
	case "disk":
		text = fmt.Sprintf("%d sandboxes on each tier, made %d at once; in each a file of %d random bytes", s.N, fillAtOnce, s.Bytes)
	case "creates":
		text = fmt.Sprintf("%d rounds of %s of each subject at each number at once, which begin when so many are done", s.N, s.Window)
	case "siege":
		text = fmt.Sprintf("%d rounds of each subject, in each %d commands of a neighbour without load and under it, after %d that are not counted; a sandbox for each load, asked every %s or so, then killed, all at once", s.Rounds, s.N, s.Warmup, mindEvery)
	case "cycles":
		text = fmt.Sprintf("%d cycles, %d at once, after %d that are not counted", s.N, s.Parallel, s.Warmup)
	}
	if s.Parallel > 1 && kind == "create" {
		text += fmt.Sprintf(", %d at once", s.Parallel)
	}
	if kind == "exec" {
		text += fmt.Sprintf("; then %d transfers of %d bytes", s.Transfer, s.Bytes)
	}
	switch {
	case s.Baseline && (kind == "creates" || kind == "siege"):
		text += "; subjects in turn, the order alternating from round to round"
	case s.Baseline:
		text += "; subjects in turn, the order alternating from pair to pair"
	}
	return text
}

// keyEvery is how often a key is pressed in a terminal: the subjects take turns.
func (s Settings) keyEvery() time.Duration {
	if s.Baseline {
		return 2 * keyEvery
	}
	return keyEvery
}

func nonEmpty(all ...string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return s == "" || strings.HasSuffix(s, " ") })
}

func ms(us int64) string { return fmt.Sprintf("%.1f", float64(us)/1000) }

func times(f float64) string { return fmt.Sprintf("%.2f", f) }
