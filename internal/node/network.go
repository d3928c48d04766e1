package node

import (
	"context"
	"errors"
	"fmt"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// SetNetwork changes what a sandbox may reach, and returns once the gateway keeps to it. News that
// is older than what the sandbox has changes nothing. If the gateway is gone it lets nothing out,
// and the next one is told.
func (n *Node) SetNetwork(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, net hutch.SandboxNetwork) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	return n.call(ctx, func(ctx context.Context) error {
		b.linking.Lock()
		defer b.linking.Unlock()
		if net.Revision > b.revision {
			b.revision, b.policy = net.Revision, net.Holds
		}
		return n.linkLocked(ctx, b)
	})
}

// firstLink makes the gateway serve the link of a sandbox that is being started.
func (n *Node) firstLink(ctx context.Context, b *box) error {
	b.linking.Lock()
	defer b.linking.Unlock()
	return n.linkLocked(ctx, b)
}

// link is for one that runs: if its policy does not hold by what the gateway was told of the
// operator's configuration, it reaches nothing until another one is set.
func (n *Node) link(ctx context.Context, b *box) error {
	b.linking.Lock()
	defer b.linking.Unlock()
	err := n.linkLocked(ctx, b)
	if b.policy != nil && errors.Is(err, hutch.ErrBadRequest) {
		return n.cutOff(ctx, b.id, b.currentEpoch(), b.sb.Handles(), err)
	}
	return err
}

// cutOff makes the gateway serve a link on which nothing is reached, and says why.
func (n *Node) cutOff(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, why error) error {
	n.log.Error("the gateway refuses a sandbox's network policy: it reaches nothing", "sandbox", id, "op", "network", "error", why)
	return n.attach(ctx, id, e, h, nil)
}

func (n *Node) linkLocked(ctx context.Context, b *box) error {
	if b.unlinked {
		return b.goneError()
	}
	return n.attach(ctx, b.id, b.currentEpoch(), b.sb.Handles(), b.policy)
}

// attach is for what is no box yet.
func (n *Node) attach(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, p *hutch.NetworkPolicy) error {
	if err := n.egress.Attach(ctx, id, e, h, p); err != nil {
		return fmt.Errorf("attach link of %s: %w", id, err)
	}
	return nil
}

// unlink makes the gateway forget a sandbox that has ended, and sees to it that nothing that is
// late brings it back.
func (n *Node) unlink(ctx context.Context, b *box) error {
	b.linking.Lock()
	b.unlinked = true
	b.linking.Unlock()
	return n.egress.Detach(ctx, b.id)
}
