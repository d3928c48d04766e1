package node

import (
	"context"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/x/id"
)

// warming are the commands that a machine runs before it is anybody's. The first command of a
// machine takes longer than others: the agent, the kernel and the programs come into memory as they are
// used for the first time. These do nothing but that, and an image that has not got them is no
// worse for it. Twice, because some of it takes a second time.
var warming = []hutch.ExecSpec{
	{Cmd: "/bin/true", Cwd: "/"},
	{Argv: []string{"/bin/true"}, Cwd: "/"},
}

// warmLimit is how long one of them may take: a thousand times what it does.
const warmLimit = 10 * time.Second

// warmUp runs the commands that warm up a machine, and sees to it that nothing of them is left:
// no process, and nothing that the guest remembers.
func (p *prepared) warmUp(ctx context.Context) error {
	for _, spec := range warming {
		spec.Timeout, spec.Grace, spec.MaxOutputBytes = warmLimit, hutch.DefaultGrace, hutch.MinOutputBytes
		if err := p.run(ctx, hutch.ExecID(id.NewExec()), spec); err != nil {
			return err
		}
	}
	l, err := p.guest.Processes(ctx)
	if err != nil {
		return fmt.Errorf("look what is left: %w", err)
	}
	for _, q := range l.Processes {
		if q.State != "Z" { // dead, and about to be reaped
			return hutch.Errorf(hutch.CodeConflict, "the image's %q goes on running", q.Command)
		}
	}
	return nil
}

// run runs a command to its end, and ends what it leaves.
func (p *prepared) run(ctx context.Context, x hutch.ExecID, spec hutch.ExecSpec) error {
	if _, err := p.guest.StartExec(ctx, guestapi.StartExec{ID: x, Spec: spec}); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	f, err := p.guest.Follow(ctx, x, guestclient.FollowOptions{Budgeted: true, Budget: spec.MaxOutputBytes})
	if err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	defer func() { _ = f.Close() }()
	for {
		fr, err := f.Next(ctx)
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		if fr.Type == guestapi.FrameEnd {
			break
		}
	}
	if r := f.Status().Result; r == nil || len(r.LeftRunning) > 0 {
		if _, err := p.guest.Stop(ctx, x, guestapi.Stop{Reason: hutch.ExecCancelled}); err != nil {
			return fmt.Errorf("stop: %w", err)
		}
	}
	if err := p.guest.Delete(ctx, x); err != nil {
		return fmt.Errorf("forget: %w", err)
	}
	return nil
}
