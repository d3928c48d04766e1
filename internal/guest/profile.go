package guest

import (
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
	"hutch.dev/hutch/internal/guest/machine"
	"hutch.dev/hutch/internal/guestapi"
)

// confined is what the agent of a locked sandbox goes by. What else locks it: [machine.Drop]
// before each command, and whom account.Database finds.
type confined struct {
	user    account.User // who acts unless a call says otherwise
	spec    string       // finds that user
	outside *os.File     // the root as it was before, writable
}

// keepTo makes the sandbox be of the profile that its first hello names, before anything runs
// in it, and refuses another later. It sets in h what follows from that. While the sandbox is
// nobody's it is not confined, and nothing runs in it. Agent.mu is held.
func (a *Agent) keepTo(h *guestapi.Hello) error {
	locked := h.Profile == hutch.ProfileLocked
	switch {
	case a.identity != nil && locked != a.locked:
		return hutch.Errorf(hutch.CodeConflict, "the profile of a sandbox cannot be changed")
	case !locked || h.Epoch == 0:
		return nil
	case a.confined == nil:
		c, err := a.confine(h.Defaults.User)
		if err != nil {
			return hutch.Wrap(hutch.CodeInternal, err, "the sandbox could not be locked: %v", err)
		}
		a.confined = c
	}
	h.Defaults.User = a.confined.spec
	// A template that was made for root may begin where others must not be.
	if cwd := h.Defaults.Cwd; cwd != "" && a.confined.user.Do(func() error { return unix.Faccessat(unix.AT_FDCWD, cwd, unix.X_OK, unix.AT_EACCESS) }) != nil {
		h.Defaults.Cwd = ""
	}
	return nil
}

// confine locks the sandbox. What it did before an error is no harm: nothing runs in a
// sandbox that could not be told who it is.
func (a *Agent) confine(template string) (*confined, error) {
	u, spec := a.users.Ordinary(template)
	if spec == "" {
		if err := machine.AddUser(a.cfg.Etc, u.Name, u.UID, u.Home); err != nil {
			return nil, err
		}
		spec = strconv.Itoa(int(u.UID))
	}
	outside, err := machine.Confine(machine.Confinement{
		UID: u.UID, GID: u.GID, Home: u.Home,
		Own: []string{path.Dir(a.cfg.OutputDir), a.cfg.ShellDir},
	})
	if err != nil {
		return nil, err
	}
	a.users.Locked.Store(&spec)
	return &confined{user: u, spec: spec, outside: outside}, nil
}

// etc is the directory of the sandbox's name as the agent may write to it.
func (a *Agent) etc() string {
	if a.confined == nil {
		return a.cfg.Etc
	}
	return machine.Below(a.confined.outside, a.cfg.Etc)
}
