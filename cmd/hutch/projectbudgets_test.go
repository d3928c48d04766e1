package main

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/control"
)

func TestParseBudgets(t *testing.T) {
	type budgets = map[hutch.ProjectID]hutch.ProjectBudget
	for name, c := range map[string]struct {
		text string
		want budgets
		err  string
	}{
		"none": {`{}`, budgets{}, ""},
		"all": {
			`{"*": {"period": "month", "cpu_seconds": 1.5, "cost": 20}, "ci": null, "dev": {"period": "day", "cost": 0.5}}`, budgets{
				"*":   {Budget: hutch.Budget{CPU: 1500 * time.Millisecond, Cost: 20}, Period: hutch.PeriodMonth},
				"ci":  {},
				"dev": {Budget: hutch.Budget{Cost: 0.5}, Period: hutch.PeriodDay},
			}, "",
		},
		"no object":        {`[]`, nil, "not an object"},
		"null":             {`null`, nil, "{} is no budgets"},
		"nothing":          {``, nil, "not an object"},
		"an empty budget":  {`{"ci": {}}`, nil, "ci: needs a period"},
		"no name":          {`{"": null}`, nil, "no name"},
		"an unknown field": {`{"ci": {"period": "day", "memory": 1}}`, nil, "memory"},
		"a number":         {`{"ci": 5}`, nil, "not an object"},
		"no CPU":           {`{"ci": {"period": "day", "cpu_seconds": 0}}`, nil, "ci.cpu_seconds"},
		"less CPU":         {`{"ci": {"period": "day", "cpu_seconds": -1}}`, nil, "ci.cpu_seconds"},
		"endless CPU":      {`{"ci": {"period": "day", "cpu_seconds": 1e300}}`, nil, "ci.cpu_seconds"},
		"no money":         {`{"ci": {"period": "day", "cost": 0}}`, nil, "ci.cost"},
		"two objects":      {`{} {}`, nil, "follows"},
	} {
		got, err := parseBudgets([]byte(c.text))
		switch {
		case c.err == "" && (err != nil || !maps.Equal(got, c.want)):
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %+v, %v; want an error about %q", name, got, err, c.err)
		}
	}
}

func FuzzParseBudgets(f *testing.F) {
	for _, s := range []string{`{}`, `{"*": {"period": "month", "cpu_seconds": 1.5, "cost": 20}, "ci": null}`, `{"a": {"period": "day", "cost": 1e400}}`, `null`, `{"a"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseBudgets(b)
		if err != nil {
			return
		}
		for p, x := range got {
			if p == "" || x.CPU < 0 || x.Cost < 0 {
				t.Errorf("%q is taken for %q with %+v", b, p, x)
			}
		}
	})
}

// The file is read again when it changes; what is wrong in it changes nothing and is said once.
func TestBudgetsFollowTheirFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "budgets.json")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var set []map[hutch.ProjectID]hutch.ProjectBudget
	var log bytes.Buffer
	cfg := control.Config{}
	f := &budgetFile{path: path, log: slog.New(slog.NewTextHandler(&log, nil)), set: func(b map[hutch.ProjectID]hutch.ProjectBudget) error {
		if err := cfg.CheckProjectBudgets(b); err != nil {
			return err
		}
		set = append(set, b)
		return nil
	}}
	if err := f.load(); err == nil {
		t.Error("a file that is not there is read")
	}
	write(`{"ci": {"period": "day", "cpu_seconds": 5}}`)
	if err := f.load(); err != nil || len(set) != 1 {
		t.Fatalf("loaded: %v, %v", set, err)
	}
	// step looks three times, of which the first may have something to say.
	step := func(what string, times int, line string) {
		t.Helper()
		log.Reset()
		for range 3 {
			f.look()
		}
		lines := 0
		if line != "" {
			lines = 1
		}
		if got := log.String(); len(set) != times || strings.Count(got, "\n") != lines || !strings.Contains(got, line) {
			t.Errorf("%s: set %d times, want %d; logged %q, want %q once", what, len(set), times, got, line)
		}
	}
	step("unchanged", 1, "")
	write(`{"ci": {"period": "day", "cpu_seconds": 6}}`)
	step("changed", 2, "are set")
	if got := set[1]["ci"].CPU; got != 6*time.Second {
		t.Errorf("the budget is %s", got)
	}
	write(`{"ci": {"period": "d`)
	step("half written", 2, "stay as they were")
	write(`{"ci": {"period": "day", "cost": 1}}`)
	step("money without rates", 2, "rate card")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	step("removed", 2, "no such file")
	write(`{"ci": {"period": "day", "cpu_seconds": 6}}`)
	step("there again", 3, "are set")
	step("unchanged again", 3, "")
}

func TestReadBudgets(t *testing.T) {
	if err := (&serveConfig{}).readBudgets(); err != nil {
		t.Errorf("without a file: %v", err)
	}
	cfg := &serveConfig{budgets: filepath.Join(t.TempDir(), "budgets.json")}
	for text, want := range map[string]string{
		`{"*": {"period": "month", "cost": 20}}`: "no rate card",
		`{"*": {"period": "year", "cost": 20}}`:  "*.period",
		`{"*"`:                                   "not an object",
	} {
		if err := os.WriteFile(cfg.budgets, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := cfg.readBudgets(); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "--project-budgets ") {
			t.Errorf("%s: %v, want an error about %q", text, err, want)
		}
	}
}

// The file in the documentation is one.
func TestTheExampleBudgets(t *testing.T) {
	doc, err := os.ReadFile("../../docs/usage.md")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?s)\n    \{\n      "\*".*?\n    \}\n`).Find(doc)
	budgets, err := parseBudgets(text)
	if err == nil {
		err = control.Config{RateCard: &hutch.RateCard{Currency: "USD"}}.CheckProjectBudgets(budgets)
	}
	if err != nil || len(budgets) < 2 {
		t.Errorf("the example budgets: %+v, %v in %s", budgets, err, text)
	}
}
