package keeper

import (
	"context"
	"maps"
	"slices"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/pidfd"
)

// put stores an entry, in place of one with an older epoch, or with the same one that
// still lives. It takes the files over, also on failure.
func (k *Keeper) put(p putRequest, files []held) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.roomLocked(p, len(files))
	if err != nil {
		closeHeld(files)
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	exited, err := pidfd.Exited(ctx, firstProc(files))
	if err != nil {
		cancel()
		closeHeld(files)
		return err
	}
	k.dropLocked(p.Name)
	e := &entry{epoch: p.Epoch, meta: p.Meta, files: files, stop: cancel}
	e.live(p.Deadline, p.use)
	k.entries[p.Name] = e
	k.files += e.count()
	failpoint.At(failpoint.KeeperStored)
	k.wg.Go(func() {
		select {
		case <-exited:
			k.noteExit(p.Name, e)
		case <-ctx.Done():
		}
	})
	k.rearmLocked()
	return nil
}

// roomLocked says why an entry cannot be stored; nil if it can.
func (k *Keeper) roomLocked(p putRequest, files int) error {
	old := k.entries[p.Name]
	if k.closed {
		return hutch.Errorf(hutch.CodeUnavailable, "the keeper is stopping")
	}
	if old != nil && p.Epoch < old.epoch {
		return hutch.ErrStale
	}
	if old != nil && p.Epoch == old.epoch && (old.killedAt != 0 || old.exitedAt != 0) {
		return hutch.ErrSandboxGone // or the note on its end would be lost
	}
	if old == nil && len(k.entries) >= MaxEntries && !k.forgetOldestLocked() {
		return hutch.Errorf(hutch.CodeNoCapacity, "the keeper holds %d sandboxes and takes no more: end some first", MaxEntries)
	}
	held := k.files
	if old != nil {
		held -= old.count()
	}
	if held+files+1 > k.maxFiles {
		return hutch.Errorf(hutch.CodeNoCapacity, "the keeper may not open more files: raise its limit (LimitNOFILE) or end some sandboxes")
	}
	return nil
}

// forgetOldestLocked drops the note on the sandbox that ended first, if there is one.
func (k *Keeper) forgetOldestLocked() bool {
	var oldest hutch.SandboxID
	for id, e := range k.entries {
		if e.exitedAt != 0 && (oldest == "" || e.exitedAt < k.entries[oldest].exitedAt) {
			oldest = id
		}
	}
	if oldest == "" {
		return false
	}
	k.log.Warn("note on a sandbox's end dropped unread: too many", "sandbox", oldest)
	k.dropLocked(oldest)
	return true
}

// setDeadline moves a living entry's deadlines and raises its epoch.
func (k *Keeper) setDeadline(r deadlineRequest) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entries[r.Name]
	switch {
	case e == nil:
		return hutch.ErrNotFound
	case r.Epoch < e.epoch:
		return hutch.ErrStale
	case e.exitedAt != 0 || e.killedAt != 0:
		return hutch.ErrSandboxGone
	}
	e.epoch = r.Epoch
	e.live(r.Deadline, r.use)
	failpoint.At(failpoint.KeeperMoved)
	k.rearmLocked()
	return nil
}

// get returns what is stored of a sandbox, with duplicates of its descriptors that the
// caller owns.
func (k *Keeper) get(id hutch.SandboxID) (getReply, []int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entries[id]
	if e == nil {
		return getReply{}, nil, hutch.ErrNotFound
	}
	fds, err := dupHeld(e.files)
	if err != nil {
		return getReply{}, nil, err
	}
	return getReply{Info: e.info(id), use: useOf(hutch.Lifetime{UsedAt: e.usedAt, Idle: e.idle}), Meta: e.meta}, fds, nil
}

// list returns up to limit entries whose names come after after, in order.
func (k *Keeper) list(after hutch.SandboxID, limit int) []Info {
	k.mu.Lock()
	defer k.mu.Unlock()
	ids := slices.Sorted(maps.Keys(k.entries))
	first, found := slices.BinarySearch(ids, after)
	if found {
		first++
	}
	infos := []Info{}
	for _, id := range ids[first:min(first+limit, len(ids))] {
		infos = append(infos, k.entries[id].info(id))
	}
	return infos
}

// delete drops an entry and ends nothing.
func (k *Keeper) delete(id hutch.SandboxID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropLocked(id)
	failpoint.At(failpoint.KeeperDropped)
	k.rearmLocked()
	k.checkDrainedLocked()
}

func (k *Keeper) dropLocked(id hutch.SandboxID) {
	e := k.entries[id]
	if e == nil {
		return
	}
	delete(k.entries, id)
	k.releaseLocked(e)
}

// releaseLocked closes an entry's descriptors and ends its watch.
func (k *Keeper) releaseLocked(e *entry) {
	k.files -= e.count()
	closeHeld(e.files)
	e.files = nil
	e.stop()
}

// noteExit records that the first process of e has exited.
func (k *Keeper) noteExit(id hutch.SandboxID, e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.entries[id] != e || e.exitedAt != 0 {
		return
	}
	e.exitedAt = time.Now().UnixNano()
	k.releaseLocked(e)
	k.log.Info("sandbox has exited", "sandbox", id, "epoch", e.epoch, "killed", e.killedAt != 0)
	k.rearmLocked()
	k.checkDrainedLocked()
}

// live sets how long an entry lives.
func (e *entry) live(deadline int64, u use) {
	e.deadline, e.usedAt, e.idle = deadline, u.usedAt(time.Now()), time.Duration(u.Idle)
}

// count is how many descriptors an entry takes: its files and one for the watch.
func (e *entry) count() int {
	if e.files == nil {
		return 0
	}
	return len(e.files) + 1
}

// info is what may be told of an entry.
func (e *entry) info(id hutch.SandboxID) Info {
	i := Info{
		Name: id, Epoch: e.epoch, Deadline: time.Unix(0, e.deadline),
		KilledAt: instant(e.killedAt), Reason: e.reason, ExitedAt: instant(e.exitedAt),
		Files: make([]FileInfo, len(e.files)),
	}
	for n, f := range e.files {
		i.Files[n] = FileInfo{Label: f.label, Process: f.proc != nil}
	}
	return i
}

func instant(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
