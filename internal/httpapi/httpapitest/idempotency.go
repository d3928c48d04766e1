package httpapitest

import (
	"context"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

type storedCall = store.IdempotentCall

// idempotency implements store.Idempotency in memory.
type idempotency struct {
	mu    sync.Mutex
	calls map[string]storedCall
	full  error // what a call's begin fails with
}

var _ store.Idempotency = (*idempotency)(nil)

func (i *idempotency) BeginCall(_ context.Context, c storedCall) (storedCall, bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.full != nil {
		return storedCall{}, false, i.full
	}
	k := string(c.Project) + "/" + c.Key
	if old, ok := i.calls[k]; ok {
		return old, true, nil
	}
	i.calls[k] = c
	return c, false, nil
}

func (i *idempotency) FinishCall(_ context.Context, c storedCall) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.calls[string(c.Project)+"/"+c.Key].Status != 0 {
		return hutch.ErrConflict
	}
	i.calls[string(c.Project)+"/"+c.Key] = c
	return nil
}

func (i *idempotency) ForgetCall(_ context.Context, p hutch.ProjectID, key string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.calls, string(p)+"/"+key)
	return nil
}

func (i *idempotency) PurgeCalls(_ context.Context, t time.Time) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := 0
	for k, c := range i.calls {
		if c.CreatedAt.Before(t) {
			delete(i.calls, k)
			n++
		}
	}
	return n, nil
}

// Full makes keyed calls impossible to record, which err says; nil ends that.
func (f *Fake) Full(err error) {
	f.idem.mu.Lock()
	defer f.idem.mu.Unlock()
	f.idem.full = err
}

// StoredCall returns what is kept of a keyed call.
func (f *Fake) StoredCall(p hutch.ProjectID, key string) (store.IdempotentCall, bool) {
	f.idem.mu.Lock()
	defer f.idem.mu.Unlock()
	c, ok := f.idem.calls[string(p)+"/"+key]
	return c, ok
}

// Interrupt makes a keyed call look as if the process had died before its answer.
func (f *Fake) Interrupt(p hutch.ProjectID, key string) {
	f.idem.mu.Lock()
	defer f.idem.mu.Unlock()
	k := string(p) + "/" + key
	c := f.idem.calls[k]
	c.Status, c.Body = 0, nil
	f.idem.calls[k] = c
}
