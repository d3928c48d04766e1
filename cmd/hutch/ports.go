package main

import (
	"context"
	"os"
	"slices"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/auth"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/node"
	"hutch.dev/hutch/internal/runtime"
)

// keeperPort is the keeper as the node wants it: whichever process it is just now.
type keeperPort struct{ *companion[*keeper.Client] }

func (k keeperPort) Put(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, deadline time.Time) error {
	return k.get().Put(ctx, id, e, h, deadline)
}

func (k keeperPort) SetDeadline(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, deadline time.Time) error {
	return k.get().SetDeadline(ctx, id, e, deadline)
}

func (k keeperPort) Get(ctx context.Context, id hutch.SandboxID) (node.Kept, error) {
	kept, err := k.get().Get(ctx, id)
	if err != nil {
		return node.Kept{}, err
	}
	return node.Kept{Handles: kept.Handles, Killed: kept.KilledAt, Exited: kept.ExitedAt}, nil
}

func (k keeperPort) Delete(ctx context.Context, id hutch.SandboxID) error {
	return k.get().Delete(ctx, id)
}

// egressPort is the gateway as the node wants it.
type egressPort struct{ *companion[*egress.Client] }

func (p egressPort) Attach(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, kind runtime.LinkKind, f *os.File) error {
	return p.get().Attach(ctx, id, e, kind, f)
}

func (p egressPort) Detach(ctx context.Context, id hutch.SandboxID) error {
	return p.get().Detach(ctx, id)
}

// keysPort is the keys as the API wants them.
type keysPort struct{ *auth.Keyring }

func (k keysPort) CreateKey(ctx context.Context, req hutch.CreateKey) (hutch.APIKey, string, error) {
	plain, rec, err := k.Create(ctx, req.Name, req.Project, req.Scope, req.TTL)
	return rec, plain, err
}

func (k keysPort) ListKeys(ctx context.Context, p hutch.ProjectID) ([]hutch.APIKey, error) {
	all, err := k.List(ctx)
	return slices.DeleteFunc(all, func(key hutch.APIKey) bool { return key.Project != p }), err
}

func (k keysPort) RevokeKey(ctx context.Context, p hutch.ProjectID, prefix string) error {
	mine, err := k.ListKeys(ctx, p)
	if err != nil {
		return err
	}
	for _, key := range mine {
		if key.Prefix == prefix && key.RevokedAt.IsZero() {
			return k.Revoke(ctx, prefix)
		}
	}
	return hutch.Errorf(hutch.CodeNotFound, "there is no valid key %q", prefix)
}
