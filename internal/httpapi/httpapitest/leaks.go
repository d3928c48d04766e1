package httpapitest

import (
	"context"

	"hutch.dev/hutch"
)

// RenewSandbox implements httpapi.Leases.
func (f *Fake) RenewSandbox(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Sandbox, error) {
	if err := f.called("RenewSandbox"); err != nil {
		return hutch.Sandbox{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	if sb.Lease == 0 {
		return hutch.Sandbox{}, hutch.Errorf(hutch.CodeInvalidState, "sandbox %s has no lease to renew", sid)
	}
	sb.LeasedTo = f.Now().Add(sb.Lease)
	return *sb, nil
}

// Leaked makes Leaks find l, until it is swept.
func (f *Fake) Leaked(l ...hutch.Leak) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaked = l
}

// Leaks implements httpapi.Leaks. It can sweep whatever is of a sandbox.
func (f *Fake) Leaks(_ context.Context, sweep bool) (left, swept []hutch.Leak, err error) {
	if err := f.called("Leaks"); err != nil {
		return nil, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.leaked {
		if sweep && l.Sandbox != "" {
			swept = append(swept, l)
		} else {
			left = append(left, l)
		}
	}
	f.leaked = left
	return left, swept, nil
}
