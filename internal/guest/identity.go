package guest

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/cgroup"
	"hutch.dev/hutch/internal/guest/machine"
	"hutch.dev/hutch/internal/guest/process"
	"hutch.dev/hutch/internal/guestapi"
)

// oldestProtocol is the oldest protocol of a node that this agent still answers.
const oldestProtocol = 1

// seedSize is how many random bytes a hello must bring at least.
const seedSize = 32

// identity is who the sandbox was told to be.
type identity struct {
	sandbox hutch.SandboxID
	epoch   hutch.Epoch // 0: nobody's yet
}

// follows reports whether i is only what was to come of a sandbox that was nobody's.
func (i identity) follows(old identity) bool { return old.epoch == 0 && i.sandbox == old.sandbox }

// ahead is what need not be done again when a sandbox becomes somebody's.
type ahead struct {
	id, hostname string
	limits       cgroup.Limits
}

// session is one connection of the node.
type session struct {
	life atomic.Uint64 // of the agent when this session said hello, plus one; 0 = it has not
}

type sessionKey struct{}

func newSession(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, sessionKey{}, new(session))
}

// identified reports whether the session of ctx has said hello in this life.
func (a *Agent) identified(ctx context.Context) bool {
	s, ok := ctx.Value(sessionKey{}).(*session)
	if !ok {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return s.life.Load() == a.life+1
}

// noteRestore closes the gate for every session, unless the node was faster than the
// kernel's notice: then the hello of this life has already come.
func (a *Agent) noteRestore() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.moved {
		a.moved = false
		return
	}
	a.life++
	a.restored, a.ahead = true, nil
}

// hello takes on an identity. The rest of it is machine-wide and done for every hello,
// also one that repeats another: clock and pool of randomness are then merely fresher.
func (a *Agent) hello(ctx context.Context, h guestapi.Hello) (guestapi.HelloReply, error) {
	if err := checkHello(h); err != nil {
		return guestapi.HelloReply{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, old := identity{h.Sandbox, h.Epoch}, a.identity
	if old != nil && (old.sandbox == now.sandbox || now.epoch == 0) && now.epoch < old.epoch {
		return guestapi.HelloReply{}, hutch.Errorf(hutch.CodeStale, "epoch %d of this sandbox is over: it is in epoch %d", now.epoch, old.epoch)
	}
	if err := a.keepTo(&h); err != nil {
		return guestapi.HelloReply{}, err
	}
	if old != nil && *old != now && !now.follows(*old) { // and this hello is not refused any more
		a.moved = !a.restored
	}
	reply := guestapi.HelloReply{
		Protocol: guestapi.ProtocolVersion,
		Version:  a.cfg.Version,
		BootNS:   int64(time.Since(a.cfg.Started)),
		Restored: a.restored || a.moved && a.identity.sandbox != now.sandbox,
	}
	a.locked = h.Profile == hutch.ProfileLocked
	a.become(h)
	a.files.SetUser(h.Defaults.User)
	a.identity, a.restored = &now, false
	if s, ok := ctx.Value(sessionKey{}).(*session); ok && a.locked == (a.confined != nil) {
		s.life.Store(a.life + 1)
	}
	return reply, nil
}

func checkHello(h guestapi.Hello) error {
	switch {
	case h.Protocol < oldestProtocol || h.Protocol > guestapi.ProtocolVersion:
		return hutch.FieldErrorf("protocol", "%d is not spoken here, only %d to %d", h.Protocol, oldestProtocol, guestapi.ProtocolVersion)
	case h.Sandbox == "":
		return hutch.FieldErrorf("sandbox", "must be set")
	case !machine.ValidHostname(h.Hostname):
		return hutch.FieldErrorf("hostname", "%.80q is not the name of a host", h.Hostname)
	case len(h.Seed) < seedSize:
		return hutch.FieldErrorf("seed", "must be at least %d bytes", seedSize)
	case h.Time <= 0:
		return hutch.FieldErrorf("time", "must be nanoseconds since 1970")
	case h.Profile != "" && !h.Profile.Valid():
		return hutch.FieldErrorf("profile", "%.80q is not known to this agent", h.Profile)
	case h.CPUs < 0 || h.Pids < 0 || h.DiskMB < 0:
		return hutch.Errorf(hutch.CodeBadRequest, "cpus, pids and disk_mb must not be negative")
	}
	if err := process.CheckEnv("env", h.Env); err != nil {
		return err
	}
	return process.CheckEnv("defaults.env", h.Defaults.Env)
}

// become applies a hello to the machine. What the machine does not allow (a full disk, a
// kernel whose clock is the host's) is logged and does not keep the sandbox from working. What
// was done ahead is not done again: whoever asked for the sandbox waits.
func (a *Agent) become(h guestapi.Hello) {
	limits := cgroup.Limits{Pids: h.Pids, CPUs: h.CPUs}
	a.table.Configure(process.Settings{
		Env: h.Env, Defaults: h.Defaults, DiskMB: h.DiskMB, Limits: limits,
		Locked: a.locked,
	})
	errs := []error{machine.SetClock(time.Unix(0, h.Time))}
	if a.ahead == nil { // else it is no copy of a machine that has drawn the same numbers
		errs = append(errs, machine.Seed(h.Seed))
	}
	id, hostname := string(h.Sandbox), h.Hostname
	if a.ahead == nil || a.ahead.id != id || a.ahead.hostname != hostname {
		errs = append(errs, machine.Name(machine.Identity{ID: id, Hostname: hostname, Etc: a.etc()}))
	}
	if a.ahead == nil || a.ahead.limits != limits {
		errs = append(errs, a.table.Limit())
	}
	a.ahead = nil
	if h.Epoch == 0 && errors.Join(errs...) == nil {
		a.ahead = &ahead{id, hostname, limits}
	}
	for _, err := range errs {
		if err != nil {
			a.cfg.Log.Warn("part of the identity had no effect", "err", err)
		}
	}
	if h.CPUs > 0 {
		runtime.GOMAXPROCS(min(h.CPUs, 2)) // the agent needs no more, however large the sandbox
	}
}
