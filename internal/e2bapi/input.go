package e2bapi

import (
	"bytes"
	"context"
	"errors"

	"connectrpc.com/connect"

	"hutch.dev/hutch"
)

// write gives a process input, after all that it was given before.
func (a *API) write(ctx context.Context, x hutch.Exec, in input) error {
	data := in.Stdin
	switch {
	case in.Stdin == nil && in.PTY == nil:
		return rpcError(connect.CodeInvalidArgument, "input is missing: send stdin, or pty for a terminal")
	case x.Spec.Terminal != nil && in.PTY == nil:
		return rpcError(connect.CodeInternal, "the process has a terminal: send pty, not stdin")
	case x.Spec.Terminal == nil && in.Stdin == nil:
		return rpcError(connect.CodeInternal, "the process has no terminal: send stdin, not pty")
	case x.Spec.Terminal == nil && !x.Spec.StdinOpen:
		return rpcError(connect.CodeInternal, "the process was started without stdin")
	case x.Spec.Terminal != nil:
		data = in.PTY
	case a.processes.inputClosed(x):
		return rpcError(connect.CodeInternal, "the process's stdin is closed")
	}
	if len(data) == 0 {
		return nil
	}
	return a.give(ctx, x, hutch.StdinChunk{Append: true, Data: bytes.NewReader(data)})
}

func (a *API) closeStdin(ctx context.Context, m *selected) (*empty, error) {
	x, err := a.find(ctx, m.Process, true) // twice is no error, though the first may have ended it
	if err != nil {
		return nil, err
	}
	switch {
	case x.Spec.Terminal != nil:
		return nil, rpcError(connect.CodeUnknown, "the input of a terminal cannot be closed: send it an end of file (byte 4)")
	case !x.Spec.StdinOpen, x.Result != nil:
		return &empty{}, nil // there is nothing to close
	}
	if a.processes.closeInput(x) {
		return &empty{}, nil
	}
	return &empty{}, a.give(ctx, x, hutch.StdinChunk{Append: true, Data: bytes.NewReader(nil), End: true})
}

// give writes to a process that may close its input meanwhile.
func (a *API) give(ctx context.Context, x hutch.Exec, c hutch.StdinChunk) error {
	_, err := a.svc.ExecControl.WriteStdin(ctx, x.Project, x.Sandbox, x.ID, c)
	if errors.Is(err, hutch.ErrInvalidState) {
		return rpcError(connect.CodeInternal, "the process's stdin is closed")
	}
	return err
}
