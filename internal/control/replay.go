package control

import "hutch.dev/hutch"

// position is how far a follower has come in each stream.
type position struct{ stdout, stderr int64 }

func (p *position) note(ev hutch.OutputEvent) {
	to := ev.Offset + int64(len(ev.Data))
	if ev.GapTo > 0 {
		to = ev.GapTo
	}
	switch ev.Stream {
	case hutch.Stdout:
		p.stdout = max(p.stdout, to)
	case hutch.Stderr:
		p.stderr = max(p.stderr, to)
	}
}

// replayable reports whether a result holds everything the command wrote.
func replayable(r hutch.ExecResult) bool { return r.Stdout.Dropped == 0 && r.Stderr.Dropped == 0 }

// replay hands out what a result holds of both streams, from the offsets in o.
func replay(r hutch.ExecResult, o hutch.FollowOptions, sink func(hutch.OutputEvent) error) error {
	if err := replayStream(hutch.Stdout, r.Stdout, o.Stdout, sink); err != nil {
		return err
	}
	return replayStream(hutch.Stderr, r.Stderr, o.Stderr, sink)
}

func replayStream(name string, out hutch.Output, from int64, sink func(hutch.OutputEvent) error) error {
	head := int64(len(out.Head))
	tail := out.Total - int64(len(out.Tail)) // offset of the tail's first byte
	if from < head {
		if err := sink(hutch.OutputEvent{Stream: name, Offset: from, Data: out.Head[from:]}); err != nil {
			return err
		}
		from = head
	}
	if from < tail {
		if err := sink(hutch.OutputEvent{Stream: name, Offset: from, GapTo: tail}); err != nil {
			return err
		}
		from = tail
	}
	if from < out.Total {
		return sink(hutch.OutputEvent{Stream: name, Offset: from, Data: out.Tail[from-tail:]})
	}
	return nil
}
