// Package storetest is the contract of package store as checks: every sentence of it
// that can be broken has one, and an adapter is done when all pass.
//
// It owns the checks and nothing else: it knows the port, never an adapter. Each check
// gets a store of its own, empty, and they run side by side; so an adapter must stand
// several stores in one process.
//
// Call [Run] from the adapter's tests and, if its records outlive the process, [RunDurable].
package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

type check = func(*testing.T, store.Store)

// Run checks the Store that open returns, which must be fresh and empty at every call.
// Run closes it.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, part := range []map[string]check{
		storeChecks, sandboxChecks, listChecks, execChecks, templateChecks, keyChecks, eventChecks, callChecks,
		buildChecks, auditChecks, usageChecks,
	} {
		for name, check := range part {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := open(t)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
				check(t, s)
			})
		}
	}
}

// day0 is the time the checks start from: to the nanosecond, and not in UTC, so that
// whoever forgets either is found out.
var day0 = time.Date(2026, 3, 4, 5, 6, 7, 123456789, time.FixedZone("far east", 9*3600))

func sandbox(id hutch.SandboxID) hutch.Sandbox {
	return hutch.Sandbox{
		ID: id, Project: "p1", Template: "base", State: hutch.StateNew, Epoch: 1,
		CreatedAt: day0, ExpiresAt: day0.Add(time.Hour),
	}
}

func create(t *testing.T, s store.Store, sb hutch.Sandbox, ev ...hutch.Event) {
	t.Helper()
	if err := s.CreateSandbox(t.Context(), sb, ev...); err != nil {
		t.Fatalf("CreateSandbox %s: %v", sb.ID, err)
	}
}

func load(t *testing.T, s store.Store, id hutch.SandboxID) hutch.Sandbox {
	t.Helper()
	sb, err := s.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatalf("Sandbox %s: %v", id, err)
	}
	return sb
}

func putExec(t *testing.T, s store.Store, e hutch.Exec, ev ...hutch.Event) {
	t.Helper()
	if err := s.PutExec(t.Context(), e, ev...); err != nil {
		t.Fatalf("PutExec %s: %v", e.ID, err)
	}
}

// event is one that names itself, so that a check sees which were stored.
func event(sb hutch.SandboxID, typ string) hutch.Event {
	return hutch.Event{At: day0, Project: "p1", Sandbox: sb, Type: typ}
}

// types lists the types of the events of a sandbox; of all when sb is empty.
func types(t *testing.T, s store.Store, sb hutch.SandboxID) []string {
	t.Helper()
	evs, err := s.Events(t.Context(), store.EventFilter{Sandbox: sb})
	if err != nil {
		t.Fatalf("Events: %v", err)
	}
	var out []string
	for _, e := range evs {
		out = append(out, e.Type)
	}
	return out
}

func wantTypes(t *testing.T, s store.Store, sb hutch.SandboxID, want ...string) {
	t.Helper()
	if got := types(t, s, sb); !reflect.DeepEqual(got, want) {
		t.Errorf("events of %q: got %q, want %q", sb, got, want)
	}
}

func wantErr(t *testing.T, doing string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", doing, got, want)
	}
	if got == nil {
		return
	}
	if e := (*hutch.Error)(nil); !errors.As(got, &e) {
		t.Errorf("%s: %v has no code: it is not a hutch.Error", doing, got)
	}
}

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// filled is a T in which no exported field is zero, however deep, each with a value of
// its own. A field that an adapter forgets, also one added later, comes back different.
func filled[T any](t *testing.T) T {
	t.Helper()
	var v T
	n := 0
	fill(t, reflect.ValueOf(&v).Elem(), &n)
	return v
}

func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(day0.UTC().Add(time.Duration(*n) * time.Nanosecond)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", *n))
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(int64(*n) + 1)
	case reflect.Uint8:
		v.SetUint(uint64(*n%255) + 1)
	case reflect.Uint64:
		v.SetUint(uint64(*n) + 1)
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, k, n)
		fill(t, e, n)
		v.SetMapIndex(k, e)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(t, v.Field(i), n)
			}
		}
	default:
		t.Fatalf("fill: teach it about %s", v.Type())
	}
}

// together runs n calls of f at once and returns what each returned.
func together(n int, f func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// hostileText is what tenants write into names and metadata.
var hostileText = map[string]string{
	"unicode":      "größe 大きさ 🐇 \u202eright to left",
	"combining":    "e\u0301 is not \u00e9",
	"quotes":       `it's "quoted" \ and ` + "`ticked`",
	"sql":          `'); DROP TABLE sandboxes; --`,
	"like":         `100% _any_ [a-z]*`,
	"json":         `{"a": [1, null], "$.b": "</script>&"}`,
	"control":      "tab\tnew line\nreturn\rescape\x1b[0mbell\a",
	"nul":          "before\x00after",
	"empty value":  "",
	" spaced key ": " spaced value ",
	"":             "empty key",
	"$.a[0].\"k\"": "a key that is a path",
}
