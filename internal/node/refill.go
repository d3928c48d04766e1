package node

import (
	"context"
	"errors"
)

// fills counts how often new companions were given what this node runs.
type fills struct{ keeper, egress int }

// RefillKeeper gives a new keeper the handles of every sandbox this node runs. Until it
// has been called a crash of the node would lose them.
func (n *Node) RefillKeeper(ctx context.Context) error {
	return n.each(&n.fills.keeper, func(b *box) error { return n.keep(ctx, b) })
}

// RefillEgress makes a new gateway serve the link of every sandbox this node runs.
func (n *Node) RefillEgress(ctx context.Context) error {
	return n.each(&n.fills.egress, func(b *box) error { return n.link(ctx, b) })
}

// link makes the gateway serve a sandbox's link.
func (n *Node) link(ctx context.Context, b *box) error {
	h := b.sb.Handles()
	return n.egress.Attach(ctx, b.id, b.currentEpoch(), h.LinkKind, h.Link)
}

// each calls f for every sandbox in service, and joins the errors of those that live on. Those
// that are coming see by the count, which is of n.fills, that they were not among them.
func (n *Node) each(count *int, f func(*box) error) error {
	n.mu.Lock()
	*count++
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
