package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/id"
)

// killTimeout bounds the removal of a sandbox, whose run may have been given up.
const killTimeout = 30 * time.Second

// Floor makes sandboxes by hand: the isolator's own calls, then the guest's, in this
// process, with nothing between. No records, no admission, no HTTP, no keeper.
type Floor struct {
	Runtime   runtime.Runtime
	Guest     string                                       // guest agent's image
	ImagePath func(digest string) (path string, err error) // root image of a digest
	// Attach serves a sandbox's link in this process, until the Closer is closed. The
	// server has its gateway do the same in another one.
	Attach func(kind runtime.LinkKind, f *os.File) (io.Closer, error)
	// Podman takes turns with the floor where the benchmark knows of it; nil = it does not.
	Podman *Podman
}

// floorBox is one sandbox made by hand.
type floorBox struct {
	id    hutch.SandboxID
	sb    runtime.Sandbox
	guest *guestclient.Client
	link  io.Closer
	ready time.Time // when the machine was prepared, and not let go yet
}

// start makes a sandbox that is like what the server made of the same request, and
// returns once its guest answers. If it fails nothing of the sandbox is left.
func (f *Floor) start(ctx context.Context, like Sandbox) (_ *floorBox, err error) {
	image, err := f.ImagePath(like.Image)
	if err != nil {
		return nil, fmt.Errorf("find root image: %w", err)
	}
	sid := hutch.SandboxID(id.NewSandbox())
	sb, err := f.Runtime.Create(ctx, runtime.Spec{
		ID: sid, Image: image, Guest: f.Guest, Resources: like.Resources, Hostname: string(sid),
	})
	if err != nil {
		return nil, fmt.Errorf("prepare machine: %w", err)
	}
	b := &floorBox{id: sid, sb: sb, guest: guestclient.New(sb.Handles().Guest), ready: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.kill(ctx))
		}
	}()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		h := sb.Handles()
		if b.link, err = f.Attach(h.LinkKind, h.Link); err != nil {
			return fmt.Errorf("attach link: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		if err := sb.Start(gctx, runtime.StartOptions{}); err != nil {
			return fmt.Errorf("start machine: %w", err)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if _, err := b.guest.Greet(ctx, sid, string(sid), like.Resources); err != nil {
		return nil, fmt.Errorf("greet guest: %w", err)
	}
	return b, nil
}

// kill removes the sandbox, also when ctx has ended.
func (b *floorBox) kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	err := b.sb.Kill(ctx)
	_ = b.guest.Close()
	if b.link != nil {
		_ = b.link.Close()
	}
	return err
}

// run runs a command and hands its output to sink; it returns the result once the
// command has ended. The guest still keeps the command: see forget.
func (b *floorBox) run(ctx context.Context, x hutch.ExecID, argv []string, sink func(p []byte)) (*hutch.ExecResult, error) {
	spec := hutch.ExecSpec{Argv: argv, Timeout: hutch.DefaultExecTimeout, Grace: hutch.DefaultGrace, MaxOutputBytes: hutch.DefaultOutputBytes}
	if _, err := b.guest.StartExec(ctx, guestapi.StartExec{ID: x, Spec: spec}); err != nil {
		return nil, fmt.Errorf("start command: %w", err)
	}
	f, err := b.guest.Follow(ctx, x, guestclient.FollowOptions{})
	if err != nil {
		return nil, fmt.Errorf("follow command: %w", err)
	}
	defer func() { _ = f.Close() }()
	for {
		fr, err := f.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("follow command: %w", err)
		}
		switch fr.Type {
		case guestapi.FrameStdout:
			sink(fr.Payload)
		case guestapi.FrameEnd:
			if res := f.Status().Result; res != nil {
				return res, nil
			}
			return nil, errors.New("follow command: it has not ended")
		default: // nothing that is asked of it prints elsewhere, and what lacks is found by its count
		}
	}
}

// forget makes the guest drop what it keeps of a command, as the server does once it has
// recorded it.
func (b *floorBox) forget(ctx context.Context, x hutch.ExecID) error {
	if err := b.guest.Delete(ctx, x); err != nil {
		return fmt.Errorf("forget command: %w", err)
	}
	return nil
}
