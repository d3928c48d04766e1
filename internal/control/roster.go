package control

import (
	"sync"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// roster is the list of living sandboxes, as it was read last. Sweeps look at it every few
// seconds, and where nothing is made, changed or ended it is what it was: hundreds of sandboxes
// that idle are not read from the records each time. The zero value is ready.
type roster struct {
	mu   sync.Mutex
	ok   bool   // list is of the records as of at
	at   uint64 // store.Changes.SandboxChanges
	list []hutch.Sandbox
}

// get returns the list, by read if it may have changed. It is shared: nobody may change it.
func (r *roster) get(st store.Changes, read func() ([]hutch.Sandbox, error)) ([]hutch.Sandbox, error) {
	before := st.SandboxChanges()
	r.mu.Lock()
	if r.ok && r.at == before {
		defer r.mu.Unlock()
		return r.list, nil
	}
	r.mu.Unlock()
	list, err := read()
	if err != nil || st.SandboxChanges() != before { // good for who asked, and no longer
		return list, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ok || r.at < before {
		r.ok, r.at, r.list = true, before, list
	}
	return list, nil
}
