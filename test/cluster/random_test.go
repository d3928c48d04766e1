package cluster

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hutch.dev/hutch"
)

var (
	seed  = flag.Uint64("seed", 1, "seed of TestRandomOperations")
	steps = flag.Int("steps", 150, "operations of TestRandomOperations")
)

// model is what must be true of the world, whatever was asked of it in whichever order.
type model struct {
	*world
	r     *rand.Rand
	boxes []*modelBox
	port  int // of a server that echoes
}

type modelBox struct {
	id    hutch.SandboxID
	state hutch.State
	why   hutch.SandboxEnd
	execs []*modelExec
	conns []hutch.PortConn // to the echo server, open as long as the sandbox runs
}

type modelExec struct {
	x   hutch.Exec
	end hutch.ExecEnd // empty while it runs
	// frail: the server died before its start was on record, while the sandbox was paused.
	// It comes onto record when the guest can be asked, and not if that is never.
	frail bool
}

// TestRandomOperations does what comes to a die's mind and compares the world with the
// model after each restart and at the end. Repeat a failure with -seed.
func TestRandomOperations(t *testing.T) {
	t.Logf("seed %d", *seed)
	w := withServices(t, func(w *world) { w.control.MaxSandboxes = 6 })
	m := &model{world: w, r: rand.New(rand.NewPCG(*seed, 0)), port: echo(t)}
	ops := []struct {
		weight int
		do     func()
	}{
		{4, m.opCreate},
		{10, m.opExec},
		{5, m.opCancel},
		{4, m.opPause},
		{5, m.opResume},
		{2, m.opKill},
		{1, m.opCrash},
		{2, m.opRestart},
		{3, m.opExtend},
		{3, m.opShort},
		{2, m.opFault},
		{5, m.opDial},
		{3, m.opTalk},
	}
	sum := 0
	for _, o := range ops {
		sum += o.weight
	}
	for range *steps {
		n := m.r.IntN(sum)
		for _, o := range ops {
			if n -= o.weight; n < 0 {
				o.do()
				break
			}
		}
		if t.Failed() {
			return
		}
	}
	m.compare()
	for _, b := range m.boxes {
		for _, c := range b.conns {
			_ = c.Close()
		}
	}
}

func (m *model) pick(states ...hutch.State) *modelBox {
	var l []*modelBox
	for _, b := range m.boxes {
		for _, s := range states {
			if b.state == s {
				l = append(l, b)
			}
		}
	}
	if len(l) == 0 {
		return nil
	}
	return l[m.r.IntN(len(l))]
}

func (m *model) alive() (n int) {
	for _, b := range m.boxes {
		if b.state != hutch.StateDead {
			n++
		}
	}
	return n
}

func (m *model) check(what string, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Errorf("seed %d: %s: %v", *seed, what, err)
	}
}

func (b *modelBox) end(why hutch.SandboxEnd) {
	b.state, b.why = hutch.StateDead, why
	for _, x := range b.execs {
		if x.end == "" {
			x.end = hutch.ExecSandboxGone
		}
	}
}

func (m *model) opCreate() {
	sb, err := m.c.CreateSandbox(m.ctx(), request())
	if m.alive() == m.control.MaxSandboxes {
		wantError(m.t, "create beyond the limit", err, hutch.ErrNoCapacity)
		return
	}
	if errors.Is(err, hutch.ErrNoCapacity) {
		// The place of one that crashed is free a moment after its end is on record.
		eventually(m.t, "there is a place", func() error {
			sb, err = m.c.CreateSandbox(m.ctx(), request())
			return err
		})
	}
	m.check("create", err)
	m.boxes = append(m.boxes, &modelBox{id: sb.ID, state: hutch.StateRunning})
}

func (m *model) opExec() {
	b := m.pick(hutch.StateRunning, hutch.StatePaused, hutch.StateDead)
	if b == nil {
		return
	}
	x, err := m.c.StartExec(m.ctx(), project, b.id, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "echo long; hang", Grace: time.Millisecond}})
	switch b.state {
	case hutch.StatePaused:
		wantError(m.t, "exec while paused", err, hutch.ErrInvalidState)
	case hutch.StateDead:
		wantError(m.t, "exec when dead", err, hutch.ErrSandboxGone)
	default:
		m.check("exec", err)
		b.execs = append(b.execs, &modelExec{x: x})
	}
}

// opShort runs a command to its end.
func (m *model) opShort() {
	b := m.pick(hutch.StateRunning)
	if b == nil {
		return
	}
	x := m.exec(hutch.Sandbox{ID: b.id}, "echo short")
	if m.r.IntN(2) == 0 { // else whatever comes next overtakes its record
		m.wantEnd(x, hutch.ExecExit, 0, "short\n")
	} else {
		_, err := m.c.FollowExec(m.ctx(), project, b.id, x.ID, hutch.FollowOptions{}, collect(new(string)))
		m.check("follow", err)
	}
	b.execs = append(b.execs, &modelExec{x: x, end: hutch.ExecExit})
}

func (m *model) opCancel() {
	b := m.pick(hutch.StateRunning)
	if b == nil || len(b.execs) == 0 {
		return
	}
	x := b.execs[m.r.IntN(len(b.execs))]
	got, err := m.c.CancelExec(m.ctx(), project, b.id, x.x.ID, nil)
	m.check("cancel", err)
	if x.end == "" {
		x.end = hutch.ExecCancelled
	}
	if err == nil && got.Result.End != x.end {
		m.t.Errorf("cancelled: %s, want %s", got.Result.End, x.end)
	}
}

func (m *model) opPause() {
	if b := m.pick(hutch.StateRunning, hutch.StatePaused); b != nil {
		_, err := m.c.PauseSandbox(m.ctx(), project, b.id)
		m.check("pause", err)
		b.state = hutch.StatePaused
		m.wantCut(b, hutch.ErrInvalidState)
	}
}

func (m *model) opResume() {
	if b := m.pick(hutch.StateRunning, hutch.StatePaused); b != nil {
		_, err := m.c.ResumeSandbox(m.ctx(), project, b.id)
		m.check("resume", err)
		b.state = hutch.StateRunning
	}
}

func (m *model) opExtend() {
	if b := m.pick(hutch.StateRunning, hutch.StatePaused, hutch.StateDead); b != nil {
		_, err := m.c.ExtendSandbox(m.ctx(), project, b.id, time.Hour)
		if b.state == hutch.StateDead {
			wantError(m.t, "extend when dead", err, hutch.ErrSandboxGone)
			return
		}
		m.check("extend", err)
	}
}

func (m *model) opKill() {
	if b := m.pick(hutch.StateRunning, hutch.StatePaused, hutch.StateDead); b != nil {
		_, err := m.c.KillSandbox(m.ctx(), project, b.id)
		if b.state == hutch.StateDead {
			wantError(m.t, "kill when dead", err, hutch.ErrSandboxGone)
			return
		}
		m.check("kill", err)
		b.end(hutch.EndKilled)
		m.wantCut(b, hutch.ErrSandboxGone)
	}
}

func (m *model) opCrash() {
	if b := m.pick(hutch.StateRunning, hutch.StatePaused); b != nil {
		m.guest(b.id).Crash()
		m.wantDead(b.id, hutch.EndCrashed)
		b.end(hutch.EndCrashed)
		m.wantCut(b, hutch.ErrSandboxGone)
	}
}

func (m *model) opRestart() {
	for _, b := range m.boxes {
		for _, x := range b.execs {
			if _, err := m.db.Exec(m.ctx(), x.x.ID); b.state == hutch.StatePaused && errors.Is(err, hutch.ErrNotFound) {
				x.frail = true
			}
		}
	}
	m.restart()
	for _, b := range m.boxes {
		m.wantCut(b, nil)
	}
	m.compare()
}

// opDial connects to a server inside.
func (m *model) opDial() {
	b := m.pick(hutch.StateRunning, hutch.StatePaused, hutch.StateDead)
	if b == nil || len(b.conns) > 5 {
		return
	}
	g, done, err := m.c.Guest(m.ctx(), project, b.id)
	defer done()
	switch b.state {
	case hutch.StatePaused:
		wantError(m.t, "the inside of a paused sandbox", err, hutch.ErrInvalidState)
		return
	case hutch.StateDead:
		wantError(m.t, "the inside of a dead sandbox", err, hutch.ErrSandboxGone)
		return
	}
	m.check("guest", err)
	if err != nil {
		return
	}
	c, err := g.DialPort(m.ctx(), m.port)
	m.check("dial", err)
	if err == nil {
		b.conns = append(b.conns, c)
	}
}

// opTalk uses a connection, whatever has happened since it was made.
func (m *model) opTalk() {
	b := m.pick(hutch.StateRunning)
	if b == nil || len(b.conns) == 0 {
		return
	}
	i := m.r.IntN(len(b.conns))
	c := b.conns[i]
	got := make([]byte, 5)
	_, err := c.Write([]byte("hello"))
	if err == nil {
		_, err = io.ReadFull(c, got)
	}
	if err == nil && string(got) != "hello" {
		err = fmt.Errorf("it came back as %q", got)
	}
	m.check("talk", err)
	if m.r.IntN(2) == 0 {
		m.check("close", c.Close())
		b.conns = slices.Delete(b.conns, i, i+1)
	}
}

// wantCut checks that every connection to a sandbox has ended, for that reason; nil = any.
func (m *model) wantCut(b *modelBox, why error) {
	m.t.Helper()
	for _, c := range b.conns {
		read := make(chan error, 1)
		go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
		switch err := within(m.t, "a connection is cut", read); {
		case err == nil:
			m.t.Errorf("seed %d: a connection to %s outlived that it was %s", *seed, b.id, b.state)
		case why != nil:
			wantError(m.t, "a connection", err, why)
		}
		_ = c.Close()
	}
	b.conns = nil
}

// opFault makes one write of records fail, of which nobody may notice but its caller.
func (m *model) opFault() {
	op := []string{"PutExec", "PutResult"}[m.r.IntN(2)]
	if m.r.IntN(2) == 0 {
		m.store.fail(op, 1+m.r.IntN(3))
	} else {
		m.store.failAfter(op, 1+m.r.IntN(3))
	}
}

// compare holds the world against the model.
func (m *model) compare() {
	m.t.Helper()
	for _, b := range m.boxes {
		if b.state == hutch.StateDead {
			m.wantDead(b.id, b.why)
		} else if sb := m.record(b.id); sb.State != b.state || sb.Transition != "" {
			m.t.Errorf("seed %d: %s is %s %s, want %s", *seed, b.id, sb.State, sb.Transition, b.state)
		}
		for _, x := range b.execs {
			eventually(m.t, fmt.Sprintf("%s has its end", x.x.ID), func() error {
				got, err := m.c.Exec(m.ctx(), project, x.x.ID)
				switch {
				case x.frail && errors.Is(err, hutch.ErrNotFound) && b.state != hutch.StateRunning:
					return nil
				case err != nil:
					return err
				case x.end == "" && got.Result != nil:
					return fmt.Errorf("it ended as %s", got.Result.End)
				case x.end != "" && got.Result == nil && b.state != hutch.StatePaused:
					return errors.New("it has none")
				case x.end != "" && got.Result != nil && got.Result.End != x.end:
					return fmt.Errorf("it ended as %s, want %s", got.Result.End, x.end)
				}
				return nil
			})
		}
	}
	m.wantAgreement()
}
