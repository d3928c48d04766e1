package storetest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// model is what a store should hold, kept in the plainest way there is.
type model struct {
	rng    *rand.Rand
	order  []hutch.SandboxID // as stored
	boxes  map[hutch.SandboxID]hutch.Sandbox
	execs  map[hutch.SandboxID][]hutch.ExecID // as stored
	events map[hutch.SandboxID][]string
	made   int
}

// matchesModel makes random operations, refused ones too, on a store and on the model,
// closing and opening the store now and then, and compares all that can be read.
func matchesModel(t *testing.T, open func() store.Store) {
	const seed = 7 // another one is another history
	m := &model{
		rng:   rand.New(rand.NewPCG(seed, seed)),
		boxes: make(map[hutch.SandboxID]hutch.Sandbox), execs: make(map[hutch.SandboxID][]hutch.ExecID), events: make(map[hutch.SandboxID][]string),
	}
	s := open()
	for step := range 250 {
		switch n := m.rng.IntN(100); {
		case n < 25:
			m.create(t, s)
		case n < 60:
			m.update(t, s)
		case n < 80:
			m.exec(t, s)
		case n < 85:
			m.purge(t, s)
		case n < 88:
			closeStore(t, s)
			s = open()
		default:
			m.compare(t, s)
		}
		if t.Failed() {
			t.Fatalf("at step %d of seed %d", step, seed)
		}
	}
	m.compare(t, s)
	closeStore(t, s)
}

// pick returns the id of a sandbox that is there, or now and then of one that is not.
func (m *model) pick() hutch.SandboxID {
	if len(m.order) == 0 || m.rng.IntN(10) == 0 {
		return "i-none"
	}
	return m.order[m.rng.IntN(len(m.order))]
}

func (m *model) metadata() map[string]string {
	out := map[string]string{}
	for range m.rng.IntN(3) {
		out[fmt.Sprint("k", m.rng.IntN(3))] = fmt.Sprint("v", m.rng.IntN(2))
	}
	return out
}

func (m *model) create(t *testing.T, s store.Store) {
	t.Helper()
	id := m.pick()
	if id == "i-none" || m.rng.IntN(4) > 0 {
		m.made++
		id = hutch.SandboxID(fmt.Sprintf("i%d", m.made))
	}
	sb := hutch.Sandbox{
		ID: id, Project: hutch.ProjectID(fmt.Sprint("p", m.rng.IntN(2))), Template: fmt.Sprint("t", m.rng.IntN(2)),
		State: hutch.StateRunning, Epoch: 1, Metadata: m.metadata(), CreatedAt: day0.UTC(),
	}
	err := s.CreateSandbox(t.Context(), sb, event(id, "made"))
	if _, taken := m.boxes[id]; taken {
		wantErr(t, "CreateSandbox with a taken id", err, hutch.ErrConflict)
		return
	}
	if err != nil {
		t.Errorf("CreateSandbox: %v", err)
	}
	m.boxes[id], m.order, m.events[id] = sb, append(m.order, id), []string{"made"}
}

func (m *model) update(t *testing.T, s store.Store) {
	t.Helper()
	id := m.pick()
	was, there := m.boxes[id]
	epoch, boom := was.Epoch, errors.New("boom")
	if m.rng.IntN(5) == 0 {
		epoch--
	}
	fails, ends, meta := m.rng.IntN(5) == 0, m.rng.IntN(6) == 0, m.metadata()
	change := func(sb *hutch.Sandbox) error {
		sb.Epoch++
		sb.Metadata = maps.Clone(meta)
		if ends {
			sb.State, sb.EndedAt = hutch.StateDead, day0.UTC().Add(time.Duration(m.made)*time.Second)
		}
		if fails {
			return boom
		}
		return nil
	}
	_, err := s.UpdateSandbox(t.Context(), id, epoch, change, event(id, "updated"))
	switch {
	case !there:
		wantErr(t, "UpdateSandbox of a missing one", err, hutch.ErrNotFound)
	case epoch != was.Epoch:
		wantErr(t, "UpdateSandbox at an old epoch", err, hutch.ErrStale)
	case fails:
		if !errors.Is(err, boom) {
			t.Errorf("UpdateSandbox: got %v, want fn's error", err)
		}
	case err != nil:
		t.Errorf("UpdateSandbox: %v", err)
	default:
		_ = change(&was) // does not fail: see above
		m.boxes[id], m.events[id] = was, append(m.events[id], "updated")
	}
}

func (m *model) exec(t *testing.T, s store.Store) {
	t.Helper()
	id := m.pick()
	m.made++
	e := hutch.Exec{ID: hutch.ExecID(fmt.Sprintf("e%d", m.made)), Sandbox: id}
	err := s.PutExec(t.Context(), e, event(id, "exec"))
	if _, there := m.boxes[id]; !there {
		wantErr(t, "PutExec of a missing sandbox", err, hutch.ErrNotFound)
		return
	}
	if err != nil {
		t.Errorf("PutExec: %v", err)
	}
	m.execs[id], m.events[id] = append(m.execs[id], e.ID), append(m.events[id], "exec")
}

func (m *model) purge(t *testing.T, s store.Store) {
	t.Helper()
	before := day0.Add(time.Duration(m.rng.IntN(m.made+1)) * time.Second)
	want := 0
	for id, sb := range m.boxes {
		if sb.State == hutch.StateDead && sb.EndedAt.Before(before) {
			want++
			delete(m.boxes, id)
			delete(m.execs, id)
			delete(m.events, id)
			m.order = slices.DeleteFunc(m.order, func(o hutch.SandboxID) bool { return o == id })
		}
	}
	if n, err := s.PurgeSandboxes(t.Context(), before); err != nil || n != want {
		t.Errorf("PurgeSandboxes: got %d, %v; want %d", n, err, want)
	}
}

func (m *model) compare(t *testing.T, s store.Store) {
	t.Helper()
	f := store.SandboxFilter{Metadata: m.metadata()}
	if m.rng.IntN(2) == 0 {
		f.Project = hutch.ProjectID(fmt.Sprint("p", m.rng.IntN(2)))
	}
	if m.rng.IntN(2) == 0 {
		f.States = []hutch.State{hutch.StateDead}
	}
	var want []hutch.SandboxID
	for _, id := range slices.Backward(m.order) {
		sb := m.boxes[id]
		fits := (f.Project == "" || f.Project == sb.Project) && (f.States == nil || slices.Contains(f.States, sb.State))
		for k, v := range f.Metadata {
			got, ok := sb.Metadata[k]
			fits = fits && ok && got == v
		}
		if fits {
			want = append(want, id)
		}
	}
	limit := m.rng.IntN(5)
	wantIDs(t, fmt.Sprintf("%+v by pages of %d", f, limit), ids(t, s, f, limit, nil), want...)

	id := m.pick()
	got, err := s.Sandbox(t.Context(), id)
	sb, there := m.boxes[id]
	if !there {
		wantErr(t, "Sandbox", err, hutch.ErrNotFound)
		return
	}
	if len(sb.Metadata) == 0 {
		sb.Metadata = nil
	}
	wantEqual(t, "the record", got, sb)
	wantTypes(t, s, id, m.events[id]...)
	list, _, err := s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: id}, store.Page{Limit: 1000})
	if err != nil || len(list) != len(m.execs[id]) {
		t.Errorf("ExecsOf %s: %d, %v; want %d", id, len(list), err, len(m.execs[id]))
	}
}
