package control

import (
	"bytes"
	"testing"

	"hutch.dev/hutch"
)

// From every offset, replay hands out each byte that the record has once and in order,
// and says of every other that it is missing.
func TestReplayFromEveryOffset(t *testing.T) {
	whole := []byte("0123456789abcdefghij")
	for name, out := range map[string]hutch.Output{
		"all kept": {Head: whole, Total: 20},
		"a gap":    {Head: whole[:5], Tail: whole[12:], Total: 20, Dropped: 7},
		"nothing":  {},
	} {
		t.Run(name, func(t *testing.T) {
			for from := int64(0); from <= out.Total+2; from++ {
				got, missing := replayed(t, out, from)
				for i := min(from, out.Total); i < out.Total; i++ {
					kept := i < int64(len(out.Head)) || i >= out.Total-int64(len(out.Tail))
					if kept && got[i] != whole[i] || !kept && !missing[i] {
						t.Fatalf("from %d: byte %d: kept %v, got %q, missing %v", from, i, kept, got[i], missing[i])
					}
				}
			}
		})
	}
}

// replayed returns which bytes came, by offset, and which were said to be missing.
func replayed(t *testing.T, out hutch.Output, from int64) (got map[int64]byte, missing map[int64]bool) {
	t.Helper()
	got, missing = map[int64]byte{}, map[int64]bool{}
	next := from
	err := replay(hutch.ExecResult{Stdout: out}, hutch.FollowOptions{Stdout: from}, func(ev hutch.OutputEvent) error {
		if ev.Stream != hutch.Stdout || ev.Offset != next {
			t.Fatalf("from %d: event of %s at %d, want stdout at %d", from, ev.Stream, ev.Offset, next)
		}
		for i, b := range bytes.Clone(ev.Data) {
			got[ev.Offset+int64(i)] = b
		}
		for i := ev.Offset; i < ev.GapTo; i++ {
			missing[i] = true
		}
		next = max(ev.Offset+int64(len(ev.Data)), ev.GapTo)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, missing
}
