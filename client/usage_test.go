package client_test

import (
	"errors"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestUsageReport(t *testing.T) {
	f, c, _ := newFake(t)
	card := httpapitest.ExampleCard
	rows := append(httpapitest.TwoHours(hutch.DefaultProject, "i1"), httpapitest.TwoHours(hutch.DefaultProject, "i2")...)
	f.SetBill(httpapitest.Bill{Card: &card, Intervals: rows})
	from, to := httpapitest.Epoch.Add(time.Hour), httpapitest.Epoch.Add(64*time.Minute+time.Millisecond)

	// Everything that can be asked for arrives, and pages follow each other.
	asked := client.UsageFilter{From: from, To: to, By: "sandbox", Limit: 1}
	r, next, err := c.UsageReport(t.Context(), asked)
	if err != nil || len(r.Usage) != 1 || r.Usage[0].SandboxID != "i1" || next == "" || r.Total.CPUMicros != 480_000_000 || r.RateCard == nil {
		t.Fatalf("the first page: %+v, then %q, %v", r, next, err)
	}
	if q := f.Asked(); !q.From.Equal(from) || !q.To.Equal(to) || q.Limit != 1 || q.Sandbox != "" {
		t.Errorf("asked: %+v", q)
	}
	asked.Cursor = next
	r, next, err = c.UsageReport(t.Context(), asked)
	if err != nil || len(r.Usage) != 1 || r.Usage[0].SandboxID != "i2" || next != "" {
		t.Errorf("the last page: %+v, then %q, %v", r, next, err)
	}
	r, _, err = c.UsageReport(t.Context(), client.UsageFilter{Sandbox: "i2"})
	if err != nil || len(r.Usage) != 3 || f.Asked().Sandbox != "i2" {
		t.Errorf("one sandbox, interval by interval: %+v, %v", r, err)
	}
	if _, _, err = c.UsageReport(t.Context(), client.UsageFilter{Sandbox: "none"}); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
}
