package control

import (
	"testing"
	"time"

	"hutch.dev/hutch"
)

// TestAskedForItsDisk: a sandbox is when it may have changed, and now and then in any case.
func TestAskedForItsDisk(t *testing.T) {
	const id = hutch.SandboxID("i1")
	m := newMeter()
	now, cpu := time.Unix(100_000, 0), time.Duration(0)
	after := func(d, used time.Duration) bool {
		t.Helper()
		now, cpu = now.Add(d), cpu+used
		m.add(id, hutch.Sample{At: now}, cpu, 10)
		return m.toAsk(id, now)
	}
	for _, c := range []struct {
		what    string
		d, used time.Duration
		answers bool // if it is asked
		want    bool
	}{
		{"new", 0, time.Second, false, true},
		{"a moment later", diskEvery / 2, time.Second, false, false},
		{"it has not answered yet", diskEvery / 2, 0, true, true},
		{"it has, and did little since", diskEvery, diskQuiet - 1, false, false},
		{"and a bit more", diskEvery, 1, true, true},
		{"nothing since", diskSeldom - 1, 0, false, false},
		{"nothing for long", 1, 0, true, true},
		{"much, a moment ago", diskEvery - 1, time.Minute, false, false},
		{"much", 1, 0, true, true},
	} {
		got := after(c.d, c.used)
		if got != c.want {
			t.Errorf("%s: asked: %v, want %v", c.what, got, c.want)
		}
		if got && c.answers {
			m.told(id, hutch.DiskUsage{Used: 1, Total: 2})
		}
	}
}
