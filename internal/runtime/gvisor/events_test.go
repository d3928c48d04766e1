package gvisor

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// next returns the next event of s.
func next(t *testing.T, s *sandbox) runtime.Event {
	t.Helper()
	select {
	case e, ok := <-s.Events():
		if !ok {
			t.Fatal("the events have ended")
		}
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("no event in half a minute")
		return runtime.Event{}
	}
}

// untilKilled kills s and returns the events before its end.
func untilKilled(t *testing.T, s *sandbox) []runtime.Event {
	t.Helper()
	kill(t, s)
	var all []runtime.Event
	for {
		select {
		case e, more := <-s.Events():
			if !more {
				return all
			}
			if e.Kind != runtime.KindExited {
				all = append(all, e)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the events of a killed sandbox have no end")
		}
	}
}

func TestExitIsReported(t *testing.T) {
	r := newRuntime(t)
	for name, end := range map[string]func(*testing.T, *sandbox, *guest){
		"sentry killed":     func(t *testing.T, s *sandbox, _ *guest) { signal(t, s.procs[0], unix.SIGKILL) },
		"guest agent ended": func(t *testing.T, _ *sandbox, g *guest) { g.send(t, true, "exit") },
	} {
		t.Run(name, func(t *testing.T) {
			s, g := start(t, r, newSpec(hutch.TierDisk))
			end(t, s, g)
			if e := next(t, s); e != (runtime.Event{Kind: runtime.KindExited}) {
				t.Errorf("event: %+v", e)
			}
			if _, more := <-s.Events(); more {
				t.Error("there is an event after the last")
			}
			if err := s.Pause(t.Context()); !errors.Is(err, hutch.ErrSandboxGone) {
				t.Errorf("pause of what has ended: %v", err)
			}
			kill(t, s)
			mustBeGone(t, r, s.id)
		})
	}
}

// A sandbox that comes near its limit is reported while there is time to act.
func TestMemoryHigh(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierDisk))
	grown := g.send(t, false, "python3", "-c", `
import time
held=[bytearray(160<<20)]
while True: held.append(bytearray(1<<20)); time.sleep(0.1)`)
	if e := next(t, s); e != (runtime.Event{Kind: runtime.KindMemoryHigh}) {
		t.Fatalf("first event: %+v", e)
	}
	g.sh(t, "pkill python3")
	if a := g.await(t, grown); a.Code == 0 {
		t.Errorf("the program ended with %+v", a)
	}
	if all := untilKilled(t, s); len(all) != 0 {
		t.Errorf("after memory was freed in time: %+v", all)
	}
}

// A program that takes all memory at once is ended; the sandbox lives.
func TestOOMKill(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierDisk))
	big := g.send(t, false, "python3", "-c", "b=bytearray(600<<20)")
	e := next(t, s)
	if e.Kind == runtime.KindMemoryHigh { // if there was time to see it
		e = next(t, s)
	}
	if e != (runtime.Event{Kind: runtime.KindOOMKill}) {
		t.Errorf("event: %+v", e)
	}
	if a := g.await(t, big); a.Code != -1 { // by a signal
		t.Errorf("the program ended with code %d: %s", a.Code, a.Out)
	}
	g.ping(t)
}

// What no program owns can only be taken back with the sandbox; its end says why.
func TestOOMOfTheWholeSandbox(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierMemory))
	g.send(t, true, "/bin/sh", "-c", "mount -t tmpfs -o size=2g none /mnt && dd if=/dev/zero of=/mnt/x bs=1M")
	for e := range s.Events() {
		if e.Kind == runtime.KindExited {
			if !e.OOM {
				t.Error("the end is not reported as out of memory")
			}
			return
		}
	}
	t.Error("the events ended without an exit")
}

// A sandbox in which root lifts the cap on processes runs into the one on the host, which
// ends it; its end says so, and how many they were.
func TestPidsLimitOfTheWholeSandbox(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierDisk)
	spec.Resources.Pids = 32
	s, g := start(t, r, spec)
	g.send(t, true, "/bin/sh", "-c", "while sleep 1000 & do :; done")
	for e := range s.Events() {
		if e.Kind != runtime.KindExited {
			continue
		}
		if !e.Pids || e.OOM {
			t.Errorf("the end is reported as %+v", e)
		}
		if st, err := s.Stats(t.Context()); err != nil || st.PidsLimit != int64(hostPids(spec.Resources)) || st.PidsPeak < st.PidsLimit {
			t.Errorf("its use: %+v, %v", st, err)
		}
		return
	}
	t.Error("the events ended without an exit")
}

// Writing files on the disk tier fills memory with pages that can be dropped; that is
// no shortage.
func TestFilePagesAreNoShortage(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierDisk)
	spec.Resources.DiskMB = 1024
	s, g := start(t, r, spec)
	g.sh(t, "dd if=/dev/zero of=/tmp/x bs=1M count=700; cat /tmp/x > /dev/null")
	st, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.MemoryPeak < memoryHigh(st.MemoryLimit) {
		t.Fatalf("700 MiB of files brought the peak to %d only: the test shows nothing", st.MemoryPeak)
	}
	if all := untilKilled(t, s); len(all) != 0 {
		t.Errorf("events: %+v", all)
	}
}

func TestMailboxMergesAndEnds(t *testing.T) {
	m := newMailbox()
	for range 100 { // nobody reads
		m.put(runtime.Event{Kind: runtime.KindMemoryHigh})
		m.put(runtime.Event{Kind: runtime.KindOOMKill})
	}
	m.put(runtime.Event{Kind: runtime.KindExited, OOM: true})
	var got []runtime.Event
	for e := range m.ch {
		got = append(got, e)
	}
	want := []runtime.Event{{Kind: runtime.KindMemoryHigh}, {Kind: runtime.KindOOMKill}, {Kind: runtime.KindExited, OOM: true}}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("event %d: got %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestMailboxRepeatsWhatWasRead(t *testing.T) {
	m := newMailbox()
	for range 3 {
		m.put(runtime.Event{Kind: runtime.KindMemoryHigh})
		if e := <-m.ch; e.Kind != runtime.KindMemoryHigh {
			t.Errorf("event: %+v", e)
		}
	}
}

func TestOverMemory(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		kills        int64
		killed, high time.Time
		want         bool
	}{
		"at once":                              {1, ago(time.Second), ago(2 * time.Second), true},
		"long after a kill, memory full since": {3, ago(time.Minute), ago(time.Second), true},
		"long after a kill":                    {3, ago(time.Minute), ago(time.Minute), false},
		"without one":                          {0, time.Time{}, ago(time.Second), false},
	} {
		if got := overMemory(c.kills, c.killed, c.high, now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
