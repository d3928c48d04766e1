package node

import (
	"context"
	"errors"
)

// RefillKeeper gives a new keeper the handles of every sandbox this node runs. Until it
// has been called a crash of the node would lose them.
func (n *Node) RefillKeeper(ctx context.Context) error {
	return n.each(func(b *box) error {
		return n.keeper.Put(ctx, b.id, b.currentEpoch(), b.sb.Handles(), b.currentDeadline())
	})
}

// RefillEgress makes a new gateway serve the link of every sandbox this node runs.
func (n *Node) RefillEgress(ctx context.Context) error {
	return n.each(func(b *box) error {
		h := b.sb.Handles()
		return n.egress.Attach(ctx, b.id, b.currentEpoch(), h.LinkKind, h.Link)
	})
}

// each calls f for every sandbox in service, and joins the errors of those that live on.
func (n *Node) each(f func(*box) error) error {
	n.mu.Lock()
	var all []*box
	for _, b := range n.boxes {
		all = append(all, b)
	}
	n.mu.Unlock()
	var errs []error
	for _, b := range all {
		err := f(b)
		select {
		case <-b.gone: // it ended meanwhile, and what failed is of no account
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
