package cluster

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/auth"
)

func TestAccess(t *testing.T) {
	w := newWorld(t)
	want := hutch.Access{Surface: hutch.SurfaceE2B, Secure: true, MaskHost: "localhost:${PORT}", Ports: map[int]string{80: "web"}}
	sb := w.create(func(r *hutch.CreateSandbox) { r.Access = want })
	same := func(what string, got hutch.Access) {
		t.Helper()
		if !maps.Equal(got.Ports, want.Ports) || got.Secure != want.Secure || got.MaskHost != want.MaskHost || got.PrivatePorts != want.PrivatePorts || got.Surface != want.Surface {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	same("as created", sb.Access)
	out, err := w.c.UpdateAccess(w.ctx(), project, sb.ID, func(a *hutch.Access) error {
		a.PrivatePorts = true
		a.Ports[8080] = "api"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want.PrivatePorts, want.Ports = true, map[int]string{80: "web", 8080: "api"}
	same("as updated", out.Access)
	_, err = w.c.UpdateAccess(w.ctx(), project, sb.ID, func(a *hutch.Access) error { a.MaskHost = "a b"; return nil })
	wantError(t, "a host that is none", err, hutch.ErrBadRequest)
	_, err = w.c.UpdateAccess(w.ctx(), project, sb.ID, func(a *hutch.Access) error { a.Secure = false; return errInjected })
	wantError(t, "a change that its caller drops", err, errInjected)
	_, err = w.c.UpdateAccess(w.ctx(), "other", sb.ID, func(*hutch.Access) error { return nil })
	wantError(t, "another project's change", err, hutch.ErrNotFound)
	w.restart()
	out, err = w.c.SandboxByID(w.ctx(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	same("after a restart", out.Access)
	if out.Epoch != sb.Epoch || out.State != hutch.StateRunning {
		t.Errorf("the sandbox: %s at epoch %d, want running at %d", out.State, out.Epoch, sb.Epoch)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.c.UpdateAccess(w.ctx(), project, sb.ID, func(*hutch.Access) error { return nil })
	wantError(t, "a change of a dead one", err, hutch.ErrSandboxGone)
	_, err = w.c.SandboxByID(w.ctx(), sb.ID)
	wantError(t, "a dead one by id", err, hutch.ErrSandboxGone)
}

func TestUpdateMetadata(t *testing.T) {
	w := newWorld(t)
	sb := w.create(func(r *hutch.CreateSandbox) { r.Metadata = map[string]string{"a": "1", "b": "2"} })
	out, err := w.c.UpdateMetadata(w.ctx(), project, sb.ID, map[string]string{"b": "3", "c": "4"})
	if err != nil || !maps.Equal(out.Metadata, map[string]string{"a": "1", "b": "3", "c": "4"}) {
		t.Errorf("UpdateMetadata: %q, %v", out.Metadata, err)
	}
	l, _, err := w.c.ListSandboxes(w.ctx(), hutch.SandboxQuery{Project: project, Metadata: map[string]string{"c": "4"}})
	if err != nil || len(l) != 1 {
		t.Errorf("found by it: %d, %v", len(l), err)
	}
	many := map[string]string{}
	for i := range 64 {
		many[fmt.Sprint(i)] = "x"
	}
	_, err = w.c.UpdateMetadata(w.ctx(), project, sb.ID, many)
	wantError(t, "too many pairs", err, hutch.ErrBadRequest)
}

func TestExtendTo(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	to := func(in time.Duration, onlyLater bool) (hutch.Sandbox, time.Time) {
		t.Helper()
		at := time.Now().Add(in)
		out, err := w.c.ExtendTo(w.ctx(), project, sb.ID, at, onlyLater)
		if err != nil {
			t.Fatalf("ExtendTo: %v", err)
		}
		return out, at
	}
	if out, at := to(2*time.Hour, true); !out.ExpiresAt.Equal(at) {
		t.Errorf("later: %s, want %s", out.ExpiresAt, at)
	}
	before, _ := to(90*time.Minute, false)
	if out, _ := to(time.Hour, true); !out.ExpiresAt.Equal(before.ExpiresAt) {
		t.Errorf("sooner, though only later: %s, want %s", out.ExpiresAt, before.ExpiresAt)
	}
	for _, in := range []time.Duration{-time.Second, 25 * time.Hour} {
		_, err := w.c.ExtendTo(w.ctx(), project, sb.ID, time.Now().Add(in), false)
		wantError(t, "to "+in.String(), err, hutch.ErrBadRequest)
	}
	_, at := to(1200*time.Millisecond, false)
	if dead := w.wantDead(sb.ID, hutch.EndExpired); dead.EndedAt.Before(at) {
		t.Errorf("it ended %s before its deadline", at.Sub(dead.EndedAt))
	}
	if l, _, err := w.c.ListSandboxes(w.ctx(), hutch.SandboxQuery{Project: project}); err != nil || len(l) != 0 {
		t.Errorf("it is listed still: %d, %v", len(l), err)
	}
}

func TestSamples(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.SampleEvery = 5 * time.Millisecond })
	sb, still := w.create(), w.create()
	if _, err := w.c.PauseSandbox(w.ctx(), project, still.ID); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	busy := w.exec(sb, "tick 1")
	var all []hutch.Sample
	var err error
	eventually(t, "there are samples of work", func() error {
		if all, err = w.c.Samples(w.ctx(), project, sb.ID, began, time.Time{}); err != nil {
			return err
		}
		if len(all) < 20 || all[len(all)-1].CPUPercent <= 0 {
			return fmt.Errorf("%d samples", len(all))
		}
		return nil
	})
	for i, s := range all {
		if s.At.Before(began) || s.CPUs != 2 || s.Memory <= 0 || s.MemoryMax != 2048<<20 || (i > 0 && !s.At.After(all[i-1].At)) {
			t.Fatalf("sample %d: %+v", i, s)
		}
	}
	// The round that was under way while it was paused is long over.
	quiet, err := w.c.Samples(w.ctx(), project, still.ID, time.Time{}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	mid := all[len(all)/2].At
	half, err := w.c.Samples(w.ctx(), project, sb.ID, began, mid)
	if err != nil || len(half) != len(all)/2+1 || !half[len(half)-1].At.Equal(mid) {
		t.Errorf("up to the middle: %d of %d, %v", len(half), len(all), err)
	}
	eventually(t, "its use can be measured", func() error {
		now, err := w.c.Usage(w.ctx(), project, sb.ID)
		if err == nil && (now.At.Before(mid) || now.CPUPercent <= 0 || now.DiskMax != 10_240<<20) {
			err = fmt.Errorf("it is %+v", now)
		}
		return err
	})
	eventually(t, "there are more samples", func() error {
		more, err := w.c.Samples(w.ctx(), project, sb.ID, all[len(all)-1].At, time.Time{})
		if err == nil && len(more) < 5 {
			err = fmt.Errorf("%d", len(more))
		}
		return err
	})
	// One that is paused is not sampled, but can be measured.
	if after, err := w.c.Samples(w.ctx(), project, still.ID, time.Time{}, time.Time{}); err != nil || len(after) != len(quiet) {
		t.Errorf("a paused sandbox got %d samples, %v", len(after)-len(quiet), err)
	}
	if u, err := w.c.Usage(w.ctx(), project, still.ID); err != nil || u.Memory <= 0 {
		t.Errorf("Usage of a paused sandbox: %+v, %v", u, err)
	}
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, busy.ID, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.c.Samples(w.ctx(), project, sb.ID, time.Time{}, time.Time{})
	wantError(t, "samples of a dead one", err, hutch.ErrSandboxGone)
	_, err = w.c.Usage(w.ctx(), "other", still.ID)
	wantError(t, "another project's look", err, hutch.ErrNotFound)
}

func TestBootStats(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		w.create()
	}
	dead := w.create()
	if _, err := w.c.KillSandbox(w.ctx(), project, dead.ID); err != nil {
		t.Fatal(err)
	}
	l, err := w.c.BootStats(w.ctx(), project)
	if err != nil || len(l) != 1 {
		t.Fatalf("BootStats: %+v, %v", l, err)
	}
	s := l[0]
	if s.Template != "base" || s.Mode != "cold" || s.Count != 4 || s.P50 <= 0 || s.P50 > s.P95 || s.P95 > s.P99 || s.P99 > s.Max {
		t.Errorf("BootStats: %+v", s)
	}
	if l, err := w.c.BootStats(w.ctx(), "other"); err != nil || len(l) != 0 {
		t.Errorf("of another project: %+v, %v", l, err)
	}
}

func TestAudit(t *testing.T) {
	w := newWorld(t)
	record := func(method string, status int) {
		w.c.RecordAudit(hutch.AuditEntry{Project: project, Key: "01234567", Method: method, Route: "/v1/sandboxes", Status: status})
	}
	read := func(q hutch.AuditQuery) []hutch.AuditEntry {
		t.Helper()
		q.Project = project
		l, err := w.c.Audit(w.ctx(), q)
		if err != nil {
			t.Fatalf("Audit: %v", err)
		}
		return l
	}
	record("POST", 201)
	record("DELETE", 204)
	l := read(hutch.AuditQuery{})
	if len(l) != 2 || l[0].Method != "DELETE" || l[1].Status != 201 || l[0].At.IsZero() {
		t.Fatalf("Audit: %+v", l)
	}
	if l := read(hutch.AuditQuery{Limit: 1}); len(l) != 1 || l[0].Method != "DELETE" {
		t.Errorf("the newest: %+v", l)
	}
	if l := read(hutch.AuditQuery{Since: time.Now().Add(time.Hour)}); len(l) != 0 {
		t.Errorf("of the future: %+v", l)
	}
	_, err := w.c.Audit(w.ctx(), hutch.AuditQuery{Project: project, Limit: 1001})
	wantError(t, "too many", err, hutch.ErrBadRequest)
	// While the records can't be written nobody waits, and what was recorded is kept.
	w.store.fail("AppendAudit", 3)
	for range 1000 {
		record("PUT", 200)
	}
	eventually(t, "they are stored once they can be", func() error {
		if l := read(hutch.AuditQuery{Limit: 1000}); len(l) != 1000 || l[0].Method != "PUT" || l[999].Method != "PUT" {
			return fmt.Errorf("%d", len(l))
		}
		return nil
	})
	// What a server that stops still has is written.
	record("LAST", 200)
	s := w.server
	w.server = nil
	s.stop()
	s.runs.Wait()
	s.n.Close()
	s.c.Close()
	s.keeper.c.Close()
	w.start()
	if l := read(hutch.AuditQuery{Limit: 1}); len(l) != 1 || l[0].Method != "LAST" {
		t.Errorf("after a restart: %+v", l)
	}
}

func TestSandboxTokensSurviveARestart(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	open := func() *auth.SandboxTokens {
		tokens, err := auth.OpenSandboxTokens(w.ctx(), w.store)
		if err != nil {
			t.Fatal(err)
		}
		return tokens
	}
	token := open().Token(sb.ID, auth.UseEnvd)
	w.restart()
	if !open().Valid(sb.ID, auth.UseEnvd, token) {
		t.Error("the token of before is not valid any more")
	}
}
