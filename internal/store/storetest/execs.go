package storetest

import (
	"bytes"
	"fmt"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var execChecks = map[string]check{
	"every field of a command is kept":            execRoundTrip,
	"a command's environment has no values":       execEnvNames,
	"a missing command is not found":              missingExec,
	"a command of no sandbox is not found":        execOfNoSandbox,
	"a command is replaced":                       execReplaced,
	"a result is not replaced by none":            execResultStays,
	"a result is replaced by a result":            execResultReplaced,
	"one of racing ends of a command is whole":    execRace,
	"output is any bytes":                         execOutputBytes,
	"the largest output is kept":                  execLargestOutput,
	"commands come last stored first, by pages":   execPages,
	"commands that run can be listed alone":       execsRunning,
	"commands come first stored first on request": execsOldest,
	"commands are listed without their output":    execsBrief,
	"the output of old commands can be dropped":   execsTrimmed,
	"commands of another sandbox are not there":   execsOfOther,
}

// command is one without a result.
func command(id hutch.ExecID) hutch.Exec {
	return hutch.Exec{ID: id, Sandbox: "i1", Project: "p1", Spec: hutch.ExecSpec{Cmd: "true"}, CreatedAt: day0.UTC()}
}

func ended(id hutch.ExecID, code int) hutch.Exec {
	e := command(id)
	e.Result = &hutch.ExecResult{End: hutch.ExecExit, ExitCode: code, StartedAt: day0.UTC(), EndedAt: day0.UTC()}
	return e
}

func loadExec(t *testing.T, s store.Store, id hutch.ExecID) hutch.Exec {
	t.Helper()
	e, err := s.Exec(t.Context(), id)
	if err != nil {
		t.Fatalf("Exec %s: %v", id, err)
	}
	return e
}

func execRoundTrip(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	want := filled[hutch.Exec](t)
	want.Sandbox = "i1"
	for k := range want.Spec.Env {
		want.Spec.Env[k] = ""
	}
	putExec(t, s, want)
	wantEqual(t, "the record", loadExec(t, s, want.ID), want)
	wantEqual(t, "its result", loadExec(t, s, want.ID).Result, want.Result)

	zero := hutch.Exec{ID: "zero", Sandbox: "i1"}
	putExec(t, s, zero)
	wantEqual(t, "a zero record", loadExec(t, s, "zero"), zero)
	zero = hutch.Exec{ID: "zero result", Sandbox: "i1", Result: new(hutch.ExecResult)}
	putExec(t, s, zero)
	wantEqual(t, "a zero result", loadExec(t, s, zero.ID), zero)
}

func execEnvNames(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	e := command("e1")
	e.Spec.Env = map[string]string{"TOKEN": "s3cret", "EMPTY": ""}
	putExec(t, s, e)
	wantEqual(t, "the environment stored", loadExec(t, s, "e1").Spec.Env, map[string]string{"TOKEN": "", "EMPTY": ""})
	if e.Spec.Env["TOKEN"] != "s3cret" {
		t.Error("PutExec changed the caller's map")
	}
	e.Result = &hutch.ExecResult{End: hutch.ExecExit}
	putExec(t, s, e)
	list, _, err := s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i1"}, store.Page{})
	if err != nil || len(list) != 1 || list[0].Spec.Env["TOKEN"] != "" {
		t.Errorf("after a replacing PutExec: %+v, %v", list, err)
	}
}

func missingExec(t *testing.T, s store.Store) {
	_, err := s.Exec(t.Context(), "e-none")
	wantErr(t, "Exec", err, hutch.ErrNotFound)
}

func execOfNoSandbox(t *testing.T, s store.Store) {
	wantErr(t, "PutExec", s.PutExec(t.Context(), command("e1"), event("i1", "exec")), hutch.ErrNotFound)
	wantTypes(t, s, "")
}

func execReplaced(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	putExec(t, s, command("e1"))
	second := command("e1")
	second.PID, second.Spec.Cmd = 42, "false"
	putExec(t, s, second, event("i1", "started"))
	wantEqual(t, "the record", loadExec(t, s, "e1"), second)
	third := ended("e1", 7)
	putExec(t, s, third, event("i1", "ended"))
	wantEqual(t, "the record with a result", loadExec(t, s, "e1"), third)
	wantTypes(t, s, "i1", "started", "ended")
}

func execResultStays(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	putExec(t, s, ended("e1", 7))
	late := command("e1")
	late.PID = 42
	putExec(t, s, late, event("i1", "late"))
	wantEqual(t, "the record", loadExec(t, s, "e1"), ended("e1", 7))
	wantTypes(t, s, "i1")
}

func execResultReplaced(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	putExec(t, s, ended("e1", 7))
	putExec(t, s, ended("e1", 8))
	wantEqual(t, "the record", loadExec(t, s, "e1"), ended("e1", 8))
}

func execRace(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	for _, err := range together(60, func(i int) error {
		e := command("e1")
		if i%3 == 0 {
			e = ended("e1", i)
			e.Result.Stdout = hutch.Output{Head: fmt.Appendf(nil, "out of %d", i), Total: int64(i)}
		}
		e.PID = i
		return s.PutExec(t.Context(), e)
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	got := loadExec(t, s, "e1")
	if got.Result == nil {
		t.Fatal("the result was replaced by a record that has none")
	}
	if i := got.PID; got.Result.ExitCode != i || string(got.Result.Stdout.Head) != fmt.Sprintf("out of %d", i) {
		t.Errorf("the record is of several writes: %+v", got)
	}
}

func execOutputBytes(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	e := ended("e1", 0)
	e.Result.Stdout = hutch.Output{Head: all, Tail: []byte("\xff\xfe not UTF-8 \xc3("), Total: 1 << 40, Dropped: 5, Path: "/tmp/ö", FileDropped: 3}
	e.Result.Stderr = hutch.Output{Head: []byte{0}}
	putExec(t, s, e)
	wantEqual(t, "the record", loadExec(t, s, "e1"), e)
}

func execLargestOutput(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	const quarter = hutch.MaxOutputBytes / 4
	putExec(t, s, ended("e1", 0))
	e := ended("e2", 0)
	e.Result.Stdout = hutch.Output{Head: bytes.Repeat([]byte{'h'}, quarter), Tail: bytes.Repeat([]byte{'t'}, 3*quarter)}
	e.Result.Stderr = hutch.Output{Head: bytes.Repeat([]byte{0xff}, hutch.MaxOutputBytes)}
	putExec(t, s, e)
	got := loadExec(t, s, e.ID).Result
	if !bytes.Equal(got.Stdout.Head, e.Result.Stdout.Head) || !bytes.Equal(got.Stdout.Tail, e.Result.Stdout.Tail) ||
		!bytes.Equal(got.Stderr.Head, e.Result.Stderr.Head) {
		t.Error("the largest output came back different")
	}
	// A page with such a command may be short, but pages make the whole.
	wantEqual(t, "commands by pages", execIDs(t, s, false, 0), []hutch.ExecID{"e2", "e1"})
}

func execIDs(t *testing.T, s store.Store, running bool, limit int) []hutch.ExecID {
	t.Helper()
	var all []hutch.ExecID
	p := store.Page{Limit: limit}
	for range 1000 {
		list, next, err := s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i1", Running: running}, p)
		if err != nil {
			t.Fatalf("ExecsOf: %v", err)
		}
		if len(list) == 0 && next != "" {
			t.Fatal("a page that is not the last is empty")
		}
		if limit > 0 && len(list) > limit {
			t.Fatalf("a page of at most %d has %d", limit, len(list))
		}
		for _, e := range list {
			all = append(all, e.ID)
		}
		if next == "" {
			return all
		}
		p.Cursor = next
	}
	t.Fatal("the listing does not end")
	return nil
}

func execPages(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	for i := range 105 {
		putExec(t, s, command(hutch.ExecID(fmt.Sprintf("e%03d", i))))
	}
	putExec(t, s, ended("e000", 0)) // replaced, and still the oldest
	for _, limit := range []int{0, 1, 50, 105, 1000} {
		got := execIDs(t, s, false, limit)
		if len(got) != 105 || got[0] != "e104" || got[104] != "e000" {
			t.Errorf("by pages of %d: %d commands, from %s to %s; want 105, e104 to e000", limit, len(got), got[0], got[len(got)-1])
		}
	}
	list, next, err := s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i1"}, store.Page{})
	if err != nil || len(list) != 100 || next == "" {
		t.Errorf("the default page: %d commands, cursor %q, %v; want 100", len(list), next, err)
	}
}

func execsRunning(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	for i := range 10 {
		id := hutch.ExecID(fmt.Sprintf("e%d", i))
		putExec(t, s, command(id))
		if i%3 != 0 {
			putExec(t, s, ended(id, 0))
		}
	}
	for _, limit := range []int{0, 1, 3} {
		wantEqual(t, fmt.Sprintf("running, by pages of %d", limit), execIDs(t, s, true, limit), []hutch.ExecID{"e9", "e6", "e3", "e0"})
	}
}

func execsOfOther(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	create(t, s, sandbox("i2"))
	putExec(t, s, command("e1"))
	other := command("e2")
	other.Sandbox = "i2"
	putExec(t, s, other)
	wantEqual(t, "commands of i1", execIDs(t, s, false, 0), []hutch.ExecID{"e1"})
}

func execsOldest(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	for i := range 5 {
		putExec(t, s, command(hutch.ExecID(fmt.Sprintf("e%d", i))))
	}
	f := store.ExecFilter{Sandbox: "i1", Oldest: true}
	for _, limit := range []int{1, 2, 5, 100} {
		var got []hutch.ExecID
		p := store.Page{Limit: limit}
		for more := true; more; more = p.Cursor != "" {
			list, next, err := s.ExecsOf(t.Context(), f, p)
			if err != nil {
				t.Fatalf("ExecsOf: %v", err)
			}
			for _, e := range list {
				got = append(got, e.ID)
			}
			p.Cursor = next
		}
		wantEqual(t, fmt.Sprintf("by pages of %d", limit), got, []hutch.ExecID{"e0", "e1", "e2", "e3", "e4"})
	}
	_, next, err := s.ExecsOf(t.Context(), f, store.Page{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i1"}, store.Page{Cursor: next})
	wantErr(t, "a cursor of the other order", err, hutch.ErrBadRequest)
}

func execsBrief(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	e := ended("e1", 3)
	e.Result.Stdout = hutch.Output{Head: []byte("head"), Tail: []byte("tail"), Total: 100, Dropped: 92, Path: "/somewhere"}
	putExec(t, s, e)
	list, _, err := s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i1", Brief: true}, store.Page{})
	if err != nil || len(list) != 1 {
		t.Fatalf("ExecsOf: %d, %v", len(list), err)
	}
	e.Result.Stdout.Head, e.Result.Stdout.Tail = nil, nil
	wantEqual(t, "the command without its output", list[0], e)
}

func execsTrimmed(t *testing.T, s store.Store) {
	create(t, s, sandbox("i1"))
	create(t, s, sandbox("i2"))
	full := func(id hutch.ExecID) hutch.Exec {
		e := ended(id, 0)
		e.Result.Stdout = hutch.Output{Head: []byte("0123"), Tail: []byte("4567"), Total: 100, Dropped: 92, Path: "/out"}
		e.Result.Stderr = hutch.Output{Head: []byte("89"), Total: 2}
		return e
	}
	var all []hutch.Exec
	for i := range 5 {
		all = append(all, full(hutch.ExecID(fmt.Sprintf("e%d", i))))
		putExec(t, s, all[i])
	}
	other, running := full("other"), command("runs")
	other.Sandbox = "i2"
	putExec(t, s, other)
	putExec(t, s, running)
	for _, c := range []struct {
		most int64
		want int
	}{{1000, 0}, {50, 0}, {49, 1}, {20, 2}, {20, 0}, {0, 2}, {0, 0}} {
		n, err := s.TrimOutput(t.Context(), "i1", c.most)
		if err != nil || n != c.want {
			t.Fatalf("TrimOutput to %d: %d, %v; want %d", c.most, n, err, c.want)
		}
		if c.most != 20 || n == 0 {
			continue
		}
		for i, e := range all {
			if i < 3 {
				e.Result.Stdout = hutch.Output{Total: 100, Dropped: 100, Path: "/out"}
				e.Result.Stderr = hutch.Output{Total: 2, Dropped: 2}
			}
			wantEqual(t, "a command", loadExec(t, s, e.ID), e)
		}
	}
	wantEqual(t, "another sandbox's", loadExec(t, s, "other"), other)
	wantEqual(t, "one that runs", loadExec(t, s, "runs"), running)
}
