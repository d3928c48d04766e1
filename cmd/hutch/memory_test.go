package main

import (
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/internal/control"
)

func TestParseMemory(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want control.Memory
		bad  bool
	}{
		"a host":          {"MemTotal:       24684096 kB\nMemFree:  1 kB\nMemAvailable:   23289856 kB\nBuffers: 1 kB\n", control.Memory{TotalMB: 24105, AvailableMB: 22744}, false},
		"nothing":         {"", control.Memory{}, true},
		"half of it":      {"MemTotal:       24684096 kB\n", control.Memory{TotalMB: 24105}, true},
		"without a value": {"MemTotal:\nMemAvailable:\n", control.Memory{}, true},
		"not a number":    {"MemTotal: many kB\n", control.Memory{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseMemory([]byte(c.text))
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
	if m, err := hostMemory(); err != nil || m.AvailableMB > m.TotalMB {
		t.Errorf("this host: %+v, %v", m, err)
	}
}

func TestServeRefusesWhatCannotBeMeant(t *testing.T) {
	for args, want := range map[string]string{
		"--unresponsive=restart":                "--unresponsive must be keep or end",
		"--unresponsive-after=1s":               "--unresponsive-after must be at least 10s",
		"--max-age=-1s":                         "--max-age must be at least 1s",
		"--overcommit=0":                        "--overcommit must be more than 0",
		"--overcommit=NaN":                      "--overcommit must be more than 0",
		"--memory-reserve=-1":                   "--memory-reserve must not be negative",
		"--project-max-sandboxes=-1":            "must not be negative",
		"--project-max-cpus=-1":                 "must not be negative",
		"--project-max-cpus=1000001":            "at most 1000000",
		"--project-max-memory=-1":               "must not be negative",
		"--project-creates-per-minute=-1":       "must not be negative",
		"--project-creates-per-minute=60000001": "at most 60000",
		"--project-profile=default=half":        `must be root or locked, not "half"`,
		"--project-profile==locked":             "name the project",
	} {
		t.Run(args, func(t *testing.T) {
			c := newServe()
			c.SetArgs([]string{"--data-dir", "/nonexistent/by/intent", args})
			c.SilenceErrors, c.SilenceUsage = true, true
			if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
	for how, want := range map[string]time.Duration{keepSilent: 0, endSilent: time.Minute} {
		if got := (serveConfig{unresponsive: how, unresponsiveAfter: time.Minute}).silence(); got != want {
			t.Errorf("%s: %v, want %v", how, got, want)
		}
	}
}
