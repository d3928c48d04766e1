package e2e

import (
	"errors"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// burn is a command that is ended when the kernel inside has given it two CPU-seconds. On a
// machine that has no time for it those are fewer to the host: inside, waiting counts.
const burn = "ulimit -t 2; while :; do :; done"

// used is what a sandbox used so far, by the host.
func (s *server) used(t *testing.T, id hutch.SandboxID) api.UsageReport {
	t.Helper()
	r, _, err := s.client.UsageReport(t.Context(), client.UsageFilter{Sandbox: id})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A sandbox that may live for a day is charged for the moment that it lived, and for the CPU
// that it used; the bill is still there when it is dead.
func TestUsageOfARealSandbox(t *testing.T) {
	card := filepath.Join(t.TempDir(), "card.json")
	if err := os.WriteFile(card, []byte(`{"currency": "USD", "cpu_hour": 0.054, "memory_gib_hour": 0.0162}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := own(t, "--rate-card", card)
	sb := s.create(t, api.CreateSandbox{TTLSeconds: ptr(86400.0)})
	s.out(t, sb.ID, "head -c 20000000 /dev/zero >/root/f; sync")
	s.run(t, sb.ID, burn)
	if err := s.client.Pause(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	paused := s.used(t, sb.ID)
	s.kill9(t)
	if err := s.start("--rate-card", card); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it stood still for a while", func() bool { return s.used(t, sb.ID).Total.PausedSeconds > 3 })
	if now := s.used(t, sb.ID); now.Total.CPUMicros != paused.Total.CPUMicros || now.Total.MemoryGiBSeconds <= paused.Total.MemoryGiBSeconds {
		t.Errorf("while it stood still: %+v, then %+v", paused.Total, now.Total)
	}
	if err := s.client.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	r := s.used(t, sb.ID)
	if len(r.Usage) == 0 {
		t.Fatalf("nothing is on the bill: %+v", r)
	}
	at := r.Usage[0].From
	for _, u := range r.Usage {
		if !u.From.Equal(at) {
			t.Errorf("after %s comes %+v", at, u)
		}
		at = u.To
	}
	began := sb.StartedAt
	if d := r.Usage[0].From.Sub(began); d < 0 || d > time.Second {
		t.Errorf("it started at %s and is charged from %s", began, r.Usage[0].From)
	}
	total := r.Total
	if wall := at.Sub(r.Usage[0].From).Seconds(); math.Abs(total.WallSeconds-wall) > 0.001 || wall > 3600 {
		t.Errorf("charged for %g s from %s to %s", total.WallSeconds, r.Usage[0].From, at)
	}
	// More than its CPUs could give in that time, or less than its command was seen to use on
	// a machine that had no time for it, it can't be.
	if cpu := float64(total.CPUMicros) / 1e6; cpu < 0.2 || cpu > 2*total.WallSeconds {
		t.Errorf("charged for %g CPU-seconds", cpu)
	}
	// What it cost is the arithmetic; memory is between the agent's and its limit.
	want := 0.054*float64(total.CPUMicros)/3.6e9 + 0.0162*total.MemoryGiBSeconds/3600
	mean := total.MemoryGiBSeconds / total.WallSeconds * 1024
	if total.Cost == nil || math.Abs(*total.Cost-want) > 1e-9 || mean < 4 || mean > 600 || total.DiskGiBSeconds <= 0 || total.EgressBytes != 0 {
		t.Errorf("the bill: %+v, want a cost of %g; %g MiB on average", total, want, mean)
	}
}

// What a project may use ends all its sandboxes, and refuses more until there is more.
func TestBudgetOfAProject(t *testing.T) {
	file := filepath.Join(t.TempDir(), "budgets.json")
	set := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set(`{"*": {"period": "month", "cpu_seconds": 2}}`)
	s := own(t, "--project-budgets", file)
	busy, idle := s.create(t, api.CreateSandbox{}), s.create(t, api.CreateSandbox{})
	s.background(t, busy.ID, "while :; do :; done")
	var e *client.Error
	for _, sb := range []api.Sandbox{busy, idle} {
		var err error
		eventually(t, "the project's sandboxes are gone", func() bool {
			_, err = s.client.Sandbox(t.Context(), sb.ID)
			return err != nil
		})
		if !errors.As(err, &e) || e.EndReason != hutch.EndBudget || !strings.Contains(e.Message, "of its 2.000 CPU-seconds for this month") {
			t.Errorf("a sandbox of the project: %v", err)
		}
	}
	exhausted := func() bool {
		_, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"})
		return errors.As(err, &e) && e.Code == hutch.CodeBudgetExhausted && e.Status == http.StatusPaymentRequired && e.RetryAfter > 0
	}
	if !exhausted() {
		t.Error("a create is not refused")
	}
	if b := s.used(t, busy.ID).Budget; b == nil || b.UsedCPUSeconds < 2 || b.CPUSeconds == nil || *b.CPUSeconds != 2 {
		t.Errorf("the budget: %+v", b)
	}
	s.kill9(t)
	if err := s.start("--project-budgets", file); err != nil {
		t.Fatal(err)
	}
	if !exhausted() {
		t.Error("a create is not refused after a crash")
	}
	set(`{"*": {"period": "month", "cpu_seconds": 2000}}`)
	eventually(t, "more is given", func() bool { return !exhausted() })
	s.out(t, s.create(t, api.CreateSandbox{}).ID, "true")
}

func TestBudgetOfARealSandbox(t *testing.T) {
	s := common(t)
	_, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", Budget: &api.Budget{Cost: ptr(1.0)}})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != hutch.CodeUnsupported || e.Field != "budget.cost" {
		t.Errorf("money without a rate card: %v", err)
	}
	sb := s.create(t, api.CreateSandbox{Budget: &api.Budget{CPUSeconds: ptr(1.5)}})
	x := s.ended(t, s.background(t, sb.ID, "while :; do :; done"))
	if x.Result.EndReason != hutch.ExecSandboxGone {
		t.Errorf("its command ended %s", x.Result.EndReason)
	}
	eventually(t, "the sandbox is gone as its command is", func() bool {
		_, err = s.client.Sandbox(t.Context(), sb.ID)
		return err != nil
	})
	if !errors.As(err, &e) || e.EndReason != hutch.EndBudget || !strings.Contains(e.Message, "of its 1.500 CPU-seconds") {
		t.Errorf("the sandbox: %v", err)
	}
	if cpu := float64(s.used(t, sb.ID).Total.CPUMicros) / 1e6; cpu < 1.5 {
		t.Errorf("it was ended when it had used %g CPU-seconds", cpu)
	}
}
