package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"hutch.dev/hutch"
)

// budgetsEvery is how often the file of budgets is looked at.
const budgetsEvery = 2 * time.Second

// budgetFile is the file of what projects may use. It is read again when it changes; what is
// wrong in it then changes nothing, and is logged once.
type budgetFile struct {
	path string
	set  func(map[hutch.ProjectID]hutch.ProjectBudget) error
	log  *slog.Logger

	last    []byte // what was read last
	trouble string // what was logged last; empty while all is well
}

// readBudgets refuses a file of budgets that cannot be held, before anything is started.
func (c *serveConfig) readBudgets() error {
	if c.budgets == "" {
		return nil
	}
	f := budgetFile{path: c.budgets, set: c.control.CheckProjectBudgets}
	if err := f.load(); err != nil {
		return fmt.Errorf("--project-budgets %s: %w", c.budgets, err)
	}
	return nil
}

// load reads the file and sets what is in it, if anything changed.
func (f *budgetFile) load() error {
	b, err := readSmall(f.path)
	if err != nil || (f.last != nil && f.trouble == "" && bytes.Equal(b, f.last)) {
		return err
	}
	budgets, err := parseBudgets(b)
	if err == nil {
		err = f.set(budgets)
	}
	if err == nil {
		f.last = b
	}
	return err
}

// run keeps to the file until ctx ends.
func (f *budgetFile) run(ctx context.Context) error {
	t := time.NewTicker(budgetsEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			f.look()
		}
	}
}

// look loads the file, and logs what comes of it.
func (f *budgetFile) look() {
	before := f.last
	err := f.load()
	switch {
	case err == nil && f.trouble == "" && bytes.Equal(before, f.last):
	case err == nil:
		f.trouble = ""
		f.log.Info("budgets of projects are set", "op", "usage")
	case err.Error() != f.trouble:
		f.trouble = err.Error()
		f.log.Error("budgets of projects stay as they were", "op", "usage", "error", err)
	}
}

// budgetEntry is a project's budget as the file has it; docs/usage.md describes it.
type budgetEntry struct {
	Period     hutch.Period `json:"period"`
	CPUSeconds *float64     `json:"cpu_seconds"`
	Cost       *float64     `json:"cost"`
}

// parseBudgets reads budgets by project. Those that could not be held are for the control plane
// to refuse; what would be taken for no limit, or for another figure, is refused here.
func parseBudgets(b []byte) (map[hutch.ProjectID]hutch.ProjectBudget, error) {
	var in map[hutch.ProjectID]*budgetEntry
	if err := decodeStrictly(b, &in); err != nil {
		return nil, fmt.Errorf("it is not an object of budgets in JSON: %w", err)
	}
	if in == nil {
		return nil, errors.New("it is null: {} is no budgets")
	}
	out := make(map[hutch.ProjectID]hutch.ProjectBudget, len(in))
	for p, e := range in {
		if p == "" {
			return nil, errors.New("a project has no name: * is every project")
		}
		if e == nil { // none, whatever every project has
			out[p] = hutch.ProjectBudget{}
			continue
		}
		x := hutch.ProjectBudget{Period: e.Period}
		if e.CPUSeconds != nil {
			ns := *e.CPUSeconds * float64(time.Second)
			if !(ns >= 1 && ns < math.MaxInt64) {
				return nil, hutch.FieldErrorf(string(p)+".cpu_seconds", "must be more than 0; leave it out for no limit")
			}
			x.CPU = time.Duration(ns)
		}
		if e.Cost != nil {
			if x.Cost = *e.Cost; x.Cost <= 0 {
				return nil, hutch.FieldErrorf(string(p)+".cost", "must be more than 0; leave it out for no limit")
			}
		}
		if x == (hutch.ProjectBudget{}) {
			return nil, fmt.Errorf("%s: needs a period, and cpu_seconds, cost, or both; null is no budget", p)
		}
		out[p] = x
	}
	return out, nil
}
