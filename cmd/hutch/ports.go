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
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/runtime"
)

// keeperPort is the keeper as the node wants it: whichever process it is just now.
type keeperPort struct{ *companion[*keeper.Client] }

func (k keeperPort) Put(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, l hutch.Lifetime) error {
	return k.call(ctx, func(c *keeper.Client) error { return c.Put(ctx, id, e, h, l) })
}

func (k keeperPort) SetLifetime(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, l hutch.Lifetime) error {
	return k.call(ctx, func(c *keeper.Client) error { return c.SetLifetime(ctx, id, e, l) })
}

func (k keeperPort) Get(ctx context.Context, id hutch.SandboxID) (node.Kept, error) {
	kept, err := k.get().Get(ctx, id)
	if err != nil {
		return node.Kept{}, err
	}
	return node.Kept{Handles: kept.Handles, Killed: kept.KilledAt, Why: kept.End(), Exited: kept.ExitedAt, UsedAt: kept.UsedAt}, nil
}

func (k keeperPort) Delete(ctx context.Context, id hutch.SandboxID) error {
	return k.call(ctx, func(c *keeper.Client) error { return c.Delete(ctx, id) })
}

func (k keeperPort) List(ctx context.Context) ([]hutch.Trace, error) {
	return listKept(ctx, k.get())
}

// listKept names what a keeper stores, as traces.
func listKept(ctx context.Context, c *keeper.Client) ([]hutch.Trace, error) {
	all, err := c.List(ctx)
	out := make([]hutch.Trace, 0, len(all))
	for _, e := range all {
		t := hutch.Trace{Kind: hutch.TraceKeeper, Name: string(e.Name), Sandbox: e.Name}
		t.Noted = !e.KilledAt.IsZero() || !e.ExitedAt.IsZero()
		out = append(out, t)
	}
	return out, err
}

// egressPort is the gateway as the node wants it.
type egressPort struct{ *companion[*egress.Client] }

func (p egressPort) Attach(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, kind runtime.LinkKind, f *os.File) error {
	return p.call(ctx, func(c *egress.Client) error { return c.Attach(ctx, id, e, kind, f) })
}

func (p egressPort) Detach(ctx context.Context, id hutch.SandboxID) error {
	return p.call(ctx, func(c *egress.Client) error { return c.Detach(ctx, id) })
}

func (p egressPort) List(ctx context.Context) ([]hutch.Trace, error) {
	return listLinks(ctx, p.get())
}

// listLinks names what a gateway serves, as traces.
func listLinks(ctx context.Context, c *egress.Client) ([]hutch.Trace, error) {
	all, err := c.List(ctx)
	out := make([]hutch.Trace, 0, len(all))
	for _, l := range all {
		out = append(out, hutch.Trace{Kind: hutch.TraceLink, Name: string(l.Name), Sandbox: l.Name, Since: l.Since})
	}
	return out, err
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

// imagesPort is the root images as the control plane wants them, where no other data
// directory may share them.
type imagesPort struct{ *rootfs.Store }

// newImage is how long an image is new: a template is recorded a moment after its image was
// made, by this process or by `hutch template build`.
const newImage = time.Hour

func (p imagesPort) Collect(ctx context.Context, keep func(digest string) bool) (int, error) {
	all, err := p.List()
	if err != nil {
		return 0, err
	}
	old := map[string]bool{}
	for _, img := range all {
		old[img.Digest] = time.Since(img.InstalledAt) > newImage
	}
	removed, err := p.GC(ctx, func(digest string) bool { return !old[digest] || keep(digest) })
	return len(removed), err
}
