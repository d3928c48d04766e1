package bench

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func sample(t *testing.T) *Report {
	t.Helper()
	rep := newReport("create", Settings{
		N: 3, Warmup: 1, Parallel: 1, Baseline: true, Template: "base",
		Sandbox: &Sandbox{Image: "sha256:abc", BootMode: "cold", Resources: hutch.Resources{MilliCPU: 1500, MemoryMB: 512, DiskMB: 10240, DiskTier: hutch.TierDisk, Pids: 128}},
	})
	rep, err := rep.finish([]Run{
		run(SubjectHutch, 1, 120_000), run(SubjectFloor, 1, 100_000),
		run(SubjectFloor, 2, 100_000), run(SubjectHutch, 2, 140_000),
		{Subject: SubjectHutch, Pair: 3, Error: "exec: no answer"},
		run(SubjectFloor, 3, 100_000),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rep.Conditions = Conditions{Hutch: "1.0", GVisor: "v0", Kernel: "6.1", LoadBefore: "0.1 0.2 0.3", Cgroups: "v1"}
	rep.Conditions.Date = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return rep
}

func TestReportRoundTrip(t *testing.T) {
	for name, rep := range map[string]*Report{"full": sample(t), "no runs": newReport("exec", Settings{})} {
		t.Run(name, func(t *testing.T) {
			if rep.Runs == nil {
				rep, _ = rep.finish([]Run{}, nil)
			}
			var b bytes.Buffer
			if err := rep.Write(&b); err != nil {
				t.Fatal(err)
			}
			got, err := Read(&b)
			if err != nil {
				t.Fatalf("%v\n%s", err, b.String())
			}
			if !reflect.DeepEqual(got, rep) {
				t.Errorf("got  %+v\nwant %+v", got, rep)
			}
		})
	}
}

// TestReadRefusesEdits: a figure that was typed by hand is found.
func TestReadRefusesEdits(t *testing.T) {
	var b bytes.Buffer
	if err := sample(t).Write(&b); err != nil {
		t.Fatal(err)
	}
	good := b.String()
	for name, edit := range map[string][2]string{
		"a percentile": {`"p50": 120000`, `"p50": 110000`},
		"a run":        {`{"first_output":140000}`, `{"first_output":150000}`},
		"a ratio":      {`"pair_median": 1.2`, `"pair_median": 1.1`},
		"the verdict":  {`"p95_within": true`, `"p95_within": false`},
		"a failure":    {`"hutch": 1`, `"hutch": 0`},
		"the format":   {`"format": 1`, `"format": 2`},
	} {
		t.Run(name, func(t *testing.T) {
			bad := strings.Replace(good, edit[0], edit[1], 1)
			if bad == good {
				t.Fatalf("%q is not in\n%s", edit[0], good)
			}
			if _, err := Read(strings.NewReader(bad)); err == nil {
				t.Error("it was read")
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	tests := map[string]struct {
		hutch []int64
		want  *Verdict
	}{
		"within":             {[]int64{120, 130, 140}, &Verdict{MetricFirstOutput, Limit, true, true, true}},
		"just within":        {[]int64{150, 150, 150}, &Verdict{MetricFirstOutput, Limit, true, true, true}},
		"over":               {[]int64{160, 170, 180}, &Verdict{MetricFirstOutput, Limit, false, false, false}},
		"over in the tail":   {[]int64{120, 130, 180}, &Verdict{MetricFirstOutput, Limit, true, false, true}},
		"nothing to compare": {nil, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var runs []Run
			for i, us := range tt.hutch {
				runs = append(runs, run(SubjectHutch, i+1, us), run(SubjectFloor, i+1, 100))
			}
			rep, err := newReport("create", Settings{}).finish(runs, nil)
			if err != nil || !reflect.DeepEqual(rep.Verdict, tt.want) {
				t.Errorf("got %+v, %v, want %+v", rep.Verdict, err, tt.want)
			}
		})
	}
}

func TestRender(t *testing.T) {
	rep := sample(t)
	rep.Stopped = errors.New("a signal came").Error()
	for name, show := range map[string]func(*Report, *bytes.Buffer) error{
		"markdown": func(r *Report, b *bytes.Buffer) error { return r.Markdown(b) },
		"text":     func(r *Report, b *bytes.Buffer) error { return r.Text(b) },
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := show(rep, &b); err != nil {
				t.Fatal(err)
			}
			squeezed := strings.Join(strings.Fields(strings.ReplaceAll(b.String(), "|", " ")), " ")
			for _, want := range []string{
				"create, to first output hutch 2 120.0 140.0 140.0 120.0 140.0",
				"create, to first output floor 3 100.0 100.0",
				"create, to first output 1.20 1.40 1.40 1.20 2",
				"p50: within, p95: within, median of pairs: within",
				"Failed runs: hutch 1, floor 0. Pair 3, hutch: exec: no answer.",
				"It ended early: a signal came.",
				"template base (sha256:abc), disk tier disk, 1.5 CPUs, 512 MiB memory",
				"before 0.1 0.2 0.3",
				"2026-01-02 03:04 UTC",
			} {
				if !strings.Contains(squeezed, want) {
					t.Errorf("%q is missing in\n%s", want, b.String())
				}
			}
		})
	}
}

func TestIntoPage(t *testing.T) {
	page := "# Title\n\n" + pageBegin + "\nold\n" + pageEnd + "\n\ntext\n"
	once, err := IntoPage(page, "| new |\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := "# Title\n\n" + pageBegin + "\n\n| new |\n\n" + pageEnd + "\n\ntext\n"; once != want {
		t.Errorf("got %q, want %q", once, want)
	}
	if twice, err := IntoPage(once, "| new |\n"); err != nil || twice != once {
		t.Errorf("not the same a second time: %q, %v", twice, err)
	}
	for _, bad := range []string{"", pageBegin, pageEnd, pageEnd + pageBegin} {
		if _, err := IntoPage(bad, "x"); err == nil {
			t.Errorf("%q was taken for a page with a place for figures", bad)
		}
	}
}

func TestConditionsHost(t *testing.T) {
	var c Conditions
	c.Host(time.Now())
	if c.Kernel == "" || c.CPU == "" || c.Cores < 1 || c.MemoryMB < 1 || len(strings.Fields(c.LoadBefore)) != 3 {
		t.Errorf("the machine says %+v", c)
	}
	if got := FileSystem("/proc/self"); got != "proc" {
		t.Errorf("file system of /proc/self is %q", got)
	}
}
