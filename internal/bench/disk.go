package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Phases of the benchmark of disks, on each tier.
const (
	phaseMade    = "after create"
	phaseWritten = "after writing a file in each"
)

// writeLimit bounds the writing of a file in one sandbox.
const writeLimit = time.Minute

// Disk measures how many bytes of the disk s.N sandboxes of one image take, on each of
// s.Tiers: once made, and once each has written a file of s.Bytes that cannot be compressed.
func Disk(ctx context.Context, s Settings, srv Server, progress func(done int)) (*Report, error) {
	if srv.Host == nil {
		return nil, errOwn
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	rep, err := begin(ctx, "disk", s, srv.API)
	if err != nil {
		return nil, err
	}
	b := &book{}
	done := 0
	for _, tier := range s.Tiers {
		t := s
		t.Tier = string(tier)
		if err = diskOf(ctx, t, tier, srv, b); err != nil {
			break
		}
		if done += s.N; progress != nil {
			progress(done)
		}
	}
	if err == nil {
		err = imageBytes(*rep.Settings.Sandbox, srv.Host, b)
	}
	return rep.conclude(b, err)
}

// imageBytes books the size of what the sandboxes share.
func imageBytes(like Sandbox, h *Host, b *book) error {
	path, err := h.Image(like.Image)
	if err != nil {
		return fmt.Errorf("find root image: %w", err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("find root image: %w", err)
	}
	b.page("shared by all", SubjectHutch, 0).add(MetricImage, Bytes, fi.Size())
	return nil
}

func diskOf(ctx context.Context, s Settings, tier hutch.DiskTier, srv Server, b *book) (err error) {
	made, written := b.page(tierPhase(tier, phaseMade), SubjectHutch, 0), b.page(tierPhase(tier, phaseWritten), SubjectHutch, 0)
	w := gather(s, srv.API)
	defer func() { err = errors.Join(err, w.end(ctx, b.page(tierPhase(tier, phaseEnd), SubjectHutch, 0))) }()
	l, err := newLedger(srv.Host)
	if err != nil {
		return err
	}
	if err := w.fill(ctx, s.N, b.page(tierPhase(tier, phaseFill), SubjectHutch, 0), func() {}); err != nil {
		return err
	}
	if err := l.book(w, made); err != nil {
		return err
	}
	for _, id := range w.ids {
		if err := writeIn(ctx, srv, id, s.Bytes); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			written.fault("write in %s: %v", id, err)
			if err := b.hopeless(written.phase); err != nil {
				return err
			}
		}
	}
	return l.book(w, written)
}

// writeIn has a sandbox write a file of random bytes, onto its disk.
func writeIn(ctx context.Context, srv Server, id hutch.SandboxID, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	res, err := srv.API.Exec(ctx, id, api.ExecRequest{Cmd: fmt.Sprintf("head -c %d /dev/urandom > /root/file && sync", size)})
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		return fmt.Errorf("exit code %d: %.200s", res.ExitCode, res.Stderr)
	}
	return nil
}

// ledger compares what is on the disk with what was.
type ledger struct {
	h       *Host
	free    int64 // on the file system, before
	records int64 // before
}

func newLedger(h *Host) (*ledger, error) {
	l := &ledger{h: h}
	var err error
	if l.records, err = h.recordBytes(); err != nil {
		return nil, err
	}
	l.free, err = freeBytes(h.BoxDir(""))
	return l, err
}

// book books each sandbox's bytes, and what all of them cost.
func (l *ledger) book(w *crowd, p page) error {
	for _, id := range w.ids {
		n, err := l.h.boxDisk(id)
		if err != nil {
			p.fault("disk of %s: %v", id, err)
			continue
		}
		p.add(MetricDisk, Bytes, n)
	}
	records, err := l.h.recordBytes()
	if err != nil {
		return err
	}
	free, err := freeBytes(l.h.BoxDir(""))
	if err != nil {
		return err
	}
	n := int64(max(len(w.ids), 1))
	p.add(MetricRecords, Bytes, (records-l.records)/n)
	p.add(MetricFreeLess, Bytes, (l.free-free)/n)
	for _, id := range w.ids {
		g, err := l.h.Groups.Open(string(id))
		if err != nil {
			p.fault("memory of %s: %v", id, err)
			continue
		}
		u, err := g.Usage()
		if err != nil {
			p.fault("memory of %s: %v", id, err)
			continue
		}
		p.add(MetricCharge, Bytes, u.Memory)
	}
	return nil
}
