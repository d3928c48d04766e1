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

// back takes n bytes of a stream back.
func (p *position) back(stream string, n int) {
	if stream == hutch.Stdout {
		p.stdout -= int64(n)
	} else {
		p.stderr -= int64(n)
	}
}

// replayable reports whether a result holds everything the command wrote.
func replayable(r hutch.ExecResult) bool { return r.Stdout.Dropped == 0 && r.Stderr.Dropped == 0 }

// onward is o from here on, where anything was seen.
func (p position) onward(o hutch.FollowOptions) hutch.FollowOptions {
	if p.stdout > 0 {
		o.Stdout = p.stdout
	}
	if p.stderr > 0 {
		o.Stderr = p.stderr
	}
	return o
}

// settled is o for a command that has ended so: what was to be followed live begins as many
// bytes before its end.
func settled(r hutch.ExecResult, o hutch.FollowOptions) hutch.FollowOptions {
	if o.Live {
		o.Live = false
		o.Stdout, o.Stderr = max(0, r.Stdout.Total-o.Last), max(0, r.Stderr.Total-o.Last)
	}
	return o
}

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
