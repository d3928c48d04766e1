package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch/internal/bench"
	"hutch.dev/hutch/internal/rootfs"
)

// benchDir is a directory for the temporary files of a benchmark, short, since control
// sockets live below it. The test fails if anything is left in it, or of it on the host.
func benchDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hb") //nolint:usetesting // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in the directory for temporary files: %v, %v", left, err)
		}
		if left := (&server{dir: dir}).processes(); len(left) > 0 {
			t.Errorf("processes left:\n%s", strings.Join(left, "\n"))
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || bytes.Contains(mounts, []byte(dir+"/")) {
			t.Errorf("a mount is left below %s, or %v", dir, err)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// benchCommand is `hutch bench` with its temporary files in dir.
func benchCommand(ctx context.Context, t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe, append([]string{"bench"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HUTCH_API_URL=", "HUTCH_API_KEY=", "HUTCH_CACHE_DIR="+rootfs.CacheDir())
	return cmd
}

func measured(t *testing.T, args ...string) *bench.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := benchCommand(ctx, t, benchDir(t), append(args, "--json")...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	rep, err := bench.Read(&stdout)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rep.Runs {
		if r.Error != "" {
			t.Errorf("a run failed: %+v", r)
		}
	}
	return rep
}

// covers checks that a summary has n counted runs of every metric for both subjects.
func covers(t *testing.T, rep *bench.Report, n int, metrics ...string) {
	t.Helper()
	for _, m := range metrics {
		for _, subject := range []string{bench.SubjectHutch, bench.SubjectFloor} {
			i := slices.IndexFunc(rep.Summary.Rows, func(r bench.Row) bool { return r.Metric == m && r.Subject == subject })
			if i < 0 {
				t.Errorf("%s of %s is missing", m, subject)
				continue
			}
			d := rep.Summary.Rows[i].US
			if d.N != n || d.Min <= 0 || d.Min > d.P50 || d.P50 > d.P95 || d.P95 > d.P99 || d.P99 > d.Max {
				t.Errorf("%s of %s: %+v, want %d times in order", m, subject, d, n)
			}
		}
		i := slices.IndexFunc(rep.Summary.Ratios, func(r bench.Ratio) bool { return r.Metric == m })
		if i < 0 || rep.Summary.Ratios[i].Pairs != n || rep.Summary.Ratios[i].PairMedian <= 0 {
			t.Errorf("no ratio of %d pairs of %s: %+v", n, m, rep.Summary.Ratios)
		}
	}
	c := rep.Conditions
	for name, v := range map[string]string{
		"hutch": c.Hutch, "gvisor": c.GVisor, "kernel": c.Kernel, "cpu": c.CPU, "load before": c.LoadBefore,
		"load after": c.LoadAfter, "cgroups": c.Cgroups, "records": c.RecordsFS, "clock": c.Clock,
	} {
		if v == "" {
			t.Errorf("the conditions do not say: %s", name)
		}
	}
	if s := rep.Settings.Sandbox; s == nil || !strings.HasPrefix(s.Image, "sha256:") || s.Resources.MemoryMB != 256 {
		t.Errorf("the measured sandbox is %+v", s)
	}
}

func TestBenchCreate(t *testing.T) {
	t.Parallel()
	rep := measured(t, "create", "-n", "3", "--warmup", "1", "--memory", "256", "--baseline")
	covers(t, rep, 3, bench.MetricFirstOutput, bench.MetricCreate, bench.MetricFirstExec, bench.MetricKill)
	if rep.Verdict == nil || rep.Verdict.Limit != bench.Limit {
		t.Errorf("verdict: %+v", rep.Verdict)
	}
	stages := 0
	for _, r := range rep.Summary.Rows {
		if strings.HasPrefix(r.Metric, "stage.") && r.Subject == bench.SubjectHutch && r.US.N == 3 {
			stages++
		}
	}
	if stages == 0 {
		t.Error("none of the server's stages is in the report")
	}
	alternatives(t, rep, 3)
}

// alternatives checks that each of podman's two was either measured n times or left out with the reason,
// and returns how many were measured.
func alternatives(t *testing.T, rep *bench.Report, n int) (measured int) {
	t.Helper()
	if len(rep.Alternatives) != 2 {
		t.Errorf("alternatives: %+v, want two", rep.Alternatives)
	}
	for _, a := range rep.Alternatives {
		if a.LeftOut != "" {
			t.Logf("%s was left out: %s", a.Subject, a.LeftOut)
			continue
		}
		measured++
		for _, m := range []string{bench.MetricFirstOutput, bench.MetricWhole} {
			i := slices.IndexFunc(rep.Summary.Rows, func(r bench.Row) bool { return r.Metric == m && r.Subject == a.Subject })
			if i < 0 || rep.Summary.Rows[i].US.N != n || rep.Summary.Rows[i].US.Min <= 0 {
				t.Errorf("%s of %s is not measured %d times: %+v", m, a.Subject, n, rep.Summary.Rows)
			}
		}
		if a.Is == "" || !strings.Contains(a.Command, "--memory 256m") {
			t.Errorf("what was measured is told as %+v", a)
		}
	}
	return measured
}

// TestBenchPodman: what is called podman on this machine gets the sandboxes' root image and
// sizes. It stands in for the real one, which TestBenchCreate measures where it is installed.
func TestBenchPodman(t *testing.T) {
	bin := t.TempDir()
	for name, text := range map[string]string{
		"crun":   "#!/bin/sh\necho crun version 0\n",
		"podman": "#!/bin/sh\nwhile [ \"$1\" != --rootfs ]; do\n\t[ \"$1\" != --version ] || { echo podman version 0; exit; }\n\tshift\ndone\nroot=${2%:O}\nshift 2\nexec chroot \"$root\" \"$@\"\n",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	rep := measured(t, "prepared", "-n", "2", "--warmup", "1", "--memory", "256", "--baseline")
	covers(t, rep, 2, bench.MetricFirstOutput, bench.MetricKill)
	if got := alternatives(t, rep, 2); got != 1 {
		t.Errorf("%d were measured, want the one that is there: %+v", got, rep.Alternatives)
	}
}

func TestBenchExec(t *testing.T) {
	t.Parallel()
	rep := measured(t, "exec", "-n", "3", "--warmup", "1", "--memory", "256", "--baseline", "--transfers", "1", "--bytes", "3000000")
	covers(t, rep, 3, bench.MetricRoundTrip, bench.MetricFirstByte)
	covers(t, rep, 1, bench.MetricTransfer)
}

func TestBenchFiles(t *testing.T) {
	rep := measured(t, "files", "-n", "2", "--warmup", "1", "--memory", "256", "--baseline", "--size", "64")
	covers(t, rep, 2, bench.MetricUpload, bench.MetricDownload)
	if len(rep.Verdicts) != 2 || rep.Verdicts[0].Limit != bench.FileLimit {
		t.Errorf("verdicts: %+v", rep.Verdicts)
	}
	// 60 MiB more of a file must not be 60 MiB more of memory; the collector's own
	// margins may differ.
	if p := rep.Peaks; len(p) != 2 || p[0].Bytes != 4<<20 || p[1].Bytes != 64<<20 || p[1].KB > p[0].KB+32<<10 {
		t.Errorf("the server's memory: %+v", p)
	}
}

func TestBenchTerminals(t *testing.T) {
	t.Parallel()
	rep := measured(t, "terminals", "-n", "2", "--warmup", "1", "--memory", "256", "--baseline", "--terminals", "50")
	covers(t, rep, 2*50, bench.MetricEcho)
}

// TestBenchInterrupted: a Ctrl-C in the middle leaves nothing, and what was measured until
// then is printed.
func TestBenchInterrupted(t *testing.T) {
	dir := benchDir(t)
	cmd := benchCommand(t.Context(), t, dir, "create", "-n", "100000", "--warmup", "0", "--memory", "256", "--json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	mine := &server{dir: dir}
	seen := map[string]bool{}
	eventually(t, "the benchmark makes its third sandbox, the first of which is for learning", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, stderr.String())
		default:
		}
		for _, p := range mine.processes() {
			if args := strings.Fields(p); args[0] == "runsc-sandbox" {
				seen[args[len(args)-1]] = true
			}
		}
		return len(seen) >= 3
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("ended with %v, want exit code 1\n%s", err, stderr.String())
		}
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		t.Fatal("it did not end a minute after the signal")
	}
	if rep, err := bench.Read(&stdout); err != nil || rep.Stopped == "" || len(rep.Runs) == 0 {
		t.Errorf("the report: %+v, %v, want one of a run or more that says that it ended early\n%s", rep, err, stderr.String())
	}
}
