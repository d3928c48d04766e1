package gvisor

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

func TestCheckpointThatEnds(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierDisk)
	s, g := start(t, r, spec)
	g.sh(t, "echo kept > /root/f")
	dir := t.TempDir()
	if err := s.Checkpoint(t.Context(), dir, false); err != nil {
		t.Fatalf("checkpoint: %v", detail(err))
	}
	if e := <-s.Events(); e != (runtime.Event{Kind: runtime.KindExited}) {
		t.Errorf("event: %+v", e)
	}
	if err := s.Pause(t.Context()); !errors.Is(err, hutch.ErrSandboxGone) {
		t.Errorf("pause of what was saved and ended: %v", err)
	}
	kill(t, s)
	mustBeGone(t, r, spec.ID)
	// The same sandbox again, as waking does.
	s = create(t, r, spec)
	if err := s.Start(t.Context(), runtime.StartOptions{Snapshot: dir}); err != nil {
		t.Fatalf("restore: %v", detail(err))
	}
	if got := attach(t, s).sh(t, "cat /root/f"); got != "kept" {
		t.Errorf("after waking the file holds %q", got)
	}
}

// A pause whose record cannot be written is not made, and can be tried again.
func TestPauseThatCannotBeRecorded(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierMemory))
	inTheWay := r.recordPath(s.id) + ".new"
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err == nil || errors.Is(err, hutch.ErrInvalidState) {
		t.Fatalf("a pause that cannot be recorded: %v", err)
	}
	g.ping(t)
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatalf("the next one: %v", detail(err))
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatalf("resume: %v", detail(err))
	}
	g.ping(t)
	kill(t, s)
}

// A checkpoint that fails leaves the sandbox running and no half snapshot.
func TestFailedCheckpoint(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierMemory))
	dir := t.TempDir()
	used := filepath.Join(dir, snapshotFiles[2])
	if err := os.WriteFile(used, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, leave := range []bool{true, false} {
		if err := s.Checkpoint(t.Context(), dir, leave); err == nil {
			t.Fatal("a checkpoint into a directory that is not empty succeeded")
		}
		if es, err := os.ReadDir(dir); err != nil || len(es) != 1 {
			t.Errorf("in the directory: %v, %v; want only what was there", es, err)
		}
		if b, err := os.ReadFile(used); err != nil || string(b) != "mine" {
			t.Errorf("what was there holds %q now, %v", b, err)
		}
		g.ping(t)
	}
	if err := s.Checkpoint(t.Context(), t.TempDir(), true); err != nil {
		t.Errorf("checkpoint after failed ones: %v", detail(err))
	}
}

// A snapshot that a sandbox cannot become is refused before the sentry sees it.
func TestSnapshotOfAnotherKindIsRefused(t *testing.T) {
	r := newRuntime(t)
	s, _ := start(t, r, newSpec(hutch.TierMemory))
	dir := t.TempDir()
	if err := s.Checkpoint(t.Context(), dir, true); err != nil {
		t.Fatalf("checkpoint: %v", detail(err))
	}
	relabel := func(change func(*label)) string {
		t.Helper()
		l := s.label()
		change(&l)
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, labelFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for want, c := range map[string]struct {
		label func(*label)
		spec  func(*runtime.Spec)
	}{
		"runtime":      {label: func(l *label) { l.Runtime = "microvm" }},
		"version":      {label: func(l *label) { l.Version = "v0" }},
		"tier":         {spec: func(s *runtime.Spec) { s.Resources.DiskTier = hutch.TierDisk }},
		"disk of 128m": {spec: func(s *runtime.Spec) { s.Resources.MemoryMB = 128 }},
		"CPUs":         {spec: func(s *runtime.Spec) { s.Resources.MilliCPU = 2000 }},
		"root image":   {label: func(l *label) { l.Image = "other.erofs" }},
		"guest agent":  {label: func(l *label) { l.Guest = "other.erofs" }},
	} {
		spec := newSpec(hutch.TierMemory)
		if c.spec != nil {
			c.spec(&spec)
		}
		if c.label == nil {
			c.label = func(*label) {}
		}
		s := create(t, r, spec)
		err := s.Start(t.Context(), runtime.StartOptions{Snapshot: relabel(c.label)})
		if !errors.Is(err, hutch.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("start from a snapshot with another %s: %v", want, err)
		}
		kill(t, s)
	}
}

func TestDamagedSnapshotFailsTheStartOnly(t *testing.T) {
	r := newRuntime(t)
	s, _ := start(t, r, newSpec(hutch.TierMemory))
	dir := t.TempDir()
	if err := s.Checkpoint(t.Context(), dir, true); err != nil {
		t.Fatalf("checkpoint: %v", detail(err))
	}
	if err := os.Truncate(filepath.Join(dir, snapshotFiles[0]), 100); err != nil {
		t.Fatal(err)
	}
	clone := create(t, r, newSpec(hutch.TierMemory))
	if err := clone.Start(t.Context(), runtime.StartOptions{Snapshot: dir}); err == nil {
		t.Error("start from a damaged snapshot succeeded")
	}
	kill(t, clone)
	mustBeGone(t, r, clone.id)
}
