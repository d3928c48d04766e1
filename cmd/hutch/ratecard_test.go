package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestReadRates(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want hutch.RateCard
		err  string
	}{
		"all":             {`{"currency": "EUR", "cpu_hour": 1, "memory_gib_hour": 2, "disk_gib_hour": 3, "egress_gib": 4}`, hutch.RateCard{Currency: "EUR", CPUHour: 1, MemoryGiBHour: 2, DiskGiBHour: 3, EgressGiB: 4}, ""},
		"some":            {`{"currency": "USD", "cpu_hour": 0.054}`, hutch.RateCard{Currency: "USD", CPUHour: 0.054}, ""},
		"no currency":     {`{"cpu_hour": 0.054}`, hutch.RateCard{}, "currency"},
		"a negative rate": {`{"currency": "USD", "disk_gib_hour": -1}`, hutch.RateCard{}, "disk_gib_hour"},
		"an endless rate": {`{"currency": "USD", "egress_gib": 1e300}`, hutch.RateCard{}, "egress_gib"},
		"an unknown rate": {`{"currency": "USD", "gpu_hour": 1}`, hutch.RateCard{}, "gpu_hour"},
		"two cards":       {`{"currency": "USD"} {"currency": "EUR"}`, hutch.RateCard{}, "follows"},
		"no card":         {``, hutch.RateCard{}, "not a rate card"},
		"a book":          {strings.Repeat(" ", maxSettingBytes) + `{"currency": "USD"}`, hutch.RateCard{}, "too large"},
	} {
		path := filepath.Join(t.TempDir(), "card.json")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := serveConfig{rateCard: path}
		cfg.control.UsageFor = time.Hour
		err := cfg.readRates()
		switch {
		case c.err == "" && (err != nil || *cfg.control.RateCard != c.want):
			t.Errorf("%s: %+v, %v; want %+v", name, cfg.control.RateCard, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || cfg.control.RateCard != nil):
			t.Errorf("%s: %+v, %v; want an error about %q", name, cfg.control.RateCard, err, c.err)
		}
	}
	cfg := serveConfig{rateCard: filepath.Join(t.TempDir(), "none")}
	if err := cfg.readRates(); err == nil || !strings.Contains(err.Error(), "--usage-retention") {
		t.Errorf("no retention: %v", err)
	}
	cfg.control.UsageFor = time.Hour
	if err := cfg.readRates(); err == nil || !strings.Contains(err.Error(), "--rate-card") {
		t.Errorf("no such file: %v", err)
	}
}

// The card in the documentation is one.
func TestTheExampleCard(t *testing.T) {
	doc, err := os.ReadFile("../../docs/usage.md")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?s)\{[^}]*"cpu_hour"[^}]*\}`).Find(doc)
	path := filepath.Join(t.TempDir(), "card.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	card, err := readRateCard(path)
	if err != nil || card.CPUHour != 0.054 || card.MemoryGiBHour != 0.0162 || card.Currency != "USD" {
		t.Errorf("the example card: %+v, %v", card, err)
	}
}
