package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/id"
	"hutch.dev/hutch/internal/x/pidfd"
)

// takenAfter is how long the end of a sandbox may take to be known once a call into it has failed.
const takenAfter = 10 * time.Second

// keep puts the small file into a new sandbox.
func keep(ctx context.Context, r commandRunner) error {
	code, err := r.result(ctx, keepArgv)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	return r.settle(ctx)
}

func checkKept(got string) error {
	if got != keptText {
		return fmt.Errorf("the file has %d bytes, not %q", len(got), keptText)
	}
	return nil
}

// apiWard is one through the server.
type apiWard struct {
	srv  Server
	sid  hutch.SandboxID
	exec hutch.ExecID
}

func makeAPIWard(ctx context.Context, srv Server, req api.CreateSandbox) (_ ward, err error) {
	sb, err := srv.API.CreateSandbox(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	w := &apiWard{srv: srv, sid: sb.ID}
	if err := keep(ctx, &apiRunner{c: srv.API, sid: sb.ID}); err != nil {
		return nil, errors.Join(err, w.kill(ctx))
	}
	return w, nil
}

func (w *apiWard) begin(ctx context.Context, cmd string) error {
	x, err := w.srv.API.StartExec(ctx, w.sid, api.ExecRequest{Cmd: cmd, Background: true})
	if err != nil {
		return w.why(ctx, err)
	}
	w.exec = x.ExecID
	return nil
}

func (w *apiWard) running(ctx context.Context) (bool, error) {
	if w.exec == "" { // it could not be begun yet
		return false, nil
	}
	x, err := w.srv.API.ExecRecord(ctx, w.exec)
	if err == nil && !x.Running && x.Result.EndReason == hutch.ExecSandboxGone {
		err = w.why(ctx, errors.New("the load has ended with the sandbox"))
	}
	return x.Running, err
}

func (w *apiWard) calls() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		MetricList: func(ctx context.Context) error {
			for _, err := range w.srv.API.Execs(ctx, w.sid, true) {
				if err != nil {
					return w.why(ctx, err)
				}
			}
			return nil
		},
		MetricRead: func(ctx context.Context) error {
			var got bytes.Buffer
			if _, err := w.srv.API.ReadFile(ctx, client.File{Sandbox: w.sid, Path: keptPath}, &got); err != nil {
				return w.why(ctx, err)
			}
			return checkKept(got.String())
		},
	}
}

func (w *apiWard) used(ctx context.Context) (time.Duration, int64, error) {
	g, err := w.srv.Host.Groups.Open(string(w.sid))
	if err != nil {
		return 0, 0, w.why(ctx, err)
	}
	u, err := g.Usage()
	if errors.Is(err, fs.ErrNotExist) {
		err = w.why(ctx, err)
	}
	return u.CPU, u.MemoryPeak, err
}

func (w *apiWard) kill(ctx context.Context) error {
	err := killBox(ctx, w.srv.API, w.sid)
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takenAfter)
	defer cancel()
	return w.why(ctx, err)
}

// why is the error of a call that failed, which the end of the sandbox explains if that comes to
// be on record as one over its load.
func (w *apiWard) why(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, hutch.ErrUnavailable) { // the server says that the sandbox lives
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, takenAfter)
	defer cancel()
	tick := time.NewTicker(mindEvery / 10)
	defer tick.Stop()
	for {
		_, gone := w.srv.API.Sandbox(ctx, w.sid)
		var said *client.Error
		if errors.As(gone, &said) && (said.EndReason == hutch.EndOOM || said.EndReason == hutch.EndPidsLimit) {
			return fmt.Errorf("%w: %w", errTaken, err)
		} else if gone != nil {
			return errors.Join(err, gone)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// floorWard is one by hand.
type floorWard struct {
	b    *floorBox
	exec hutch.ExecID
}

func (f *Floor) makeWard(ctx context.Context, like Sandbox) (ward, error) {
	b, err := f.start(ctx, like)
	if err != nil {
		return nil, err
	}
	w := &floorWard{b: b}
	if err := keep(ctx, &floorRunner{b: b}); err != nil {
		return nil, errors.Join(err, w.kill(ctx))
	}
	return w, nil
}

func (w *floorWard) begin(ctx context.Context, cmd string) error {
	x := hutch.ExecID(id.NewExec())
	spec := hutch.ExecSpec{Cmd: cmd, Background: true, Timeout: hutch.DefaultExecTimeout, Grace: hutch.DefaultGrace, MaxOutputBytes: hutch.DefaultOutputBytes}
	if _, err := w.b.guest.StartExec(ctx, guestapi.StartExec{ID: x, Spec: spec}); err != nil {
		return w.why(ctx, err)
	}
	w.exec = x
	return nil
}

func (w *floorWard) running(ctx context.Context) (bool, error) {
	if w.exec == "" {
		return false, nil
	}
	st, err := w.b.guest.Exec(ctx, w.exec)
	return err == nil && st.Result == nil, w.why(ctx, err)
}

func (w *floorWard) calls() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		MetricList: func(ctx context.Context) error {
			_, err := w.b.guest.Execs(ctx)
			return w.why(ctx, err)
		},
		MetricRead: func(ctx context.Context) error {
			f, err := w.b.guest.OpenFile(ctx, hutch.ReadFile{FileRef: hutch.FileRef{Path: keptPath}})
			if err != nil {
				return w.why(ctx, err)
			}
			got, err := io.ReadAll(f.Body)
			if err = errors.Join(err, f.Body.Close()); err != nil {
				return w.why(ctx, err)
			}
			return checkKept(string(got))
		},
	}
}

func (w *floorWard) used(ctx context.Context) (time.Duration, int64, error) {
	st, err := w.b.sb.Stats(ctx)
	return st.CPU, st.MemoryPeak, w.why(ctx, err)
}

func (w *floorWard) kill(ctx context.Context) error { return w.b.kill(ctx) }

// why is the error of a call that failed, which the end of the sandbox explains: by hand, nobody
// but its load ends one. Its link may break a moment before it has ended.
func (w *floorWard) why(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, hutch.ErrUnavailable) { // the guest says that it lives
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, takenAfter)
	defer cancel()
	if pidfd.Wait(ctx, w.b.sb.Handles().Procs[0]) != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errTaken, err)
}
