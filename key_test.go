package hutch

import "testing"

func TestScopesIncludeTheOnesBefore(t *testing.T) {
	order := []Scope{ScopeRead, ScopeRun, ScopeAdmin}
	for i, has := range order {
		if !has.Valid() {
			t.Errorf("%q is not valid", has)
		}
		for j, need := range order {
			if got, want := has.Includes(need), i >= j; got != want {
				t.Errorf("%q includes %q: %v, want %v", has, need, got, want)
			}
		}
	}
}

// What is not a scope neither gives nor can be satisfied: a record with a scope that a
// later version wrote must not open anything.
func TestUnknownScopesOpenNothing(t *testing.T) {
	for _, odd := range []Scope{"", "root", "Admin", "ADMIN", "admin ", "read,run", "*"} {
		if odd.Valid() {
			t.Errorf("%q is valid", odd)
		}
		for _, known := range []Scope{ScopeRead, ScopeRun, ScopeAdmin} {
			if odd.Includes(known) {
				t.Errorf("%q includes %q", odd, known)
			}
			if known.Includes(odd) {
				t.Errorf("%q includes %q", known, odd)
			}
		}
		if odd.Includes(odd) {
			t.Errorf("%q includes itself", odd)
		}
	}
}

func TestCPUs(t *testing.T) {
	for milli, want := range map[int]int{-5: 1, 0: 1, 1: 1, 999: 1, 1000: 1, 1001: 2, 1500: 2, 2000: 2, 4000: 4, 63001: 64} {
		if got := (Resources{MilliCPU: milli}).CPUs(); got != want {
			t.Errorf("%d thousandths are %d CPUs, want %d", milli, got, want)
		}
	}
}
