package control

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"hutch.dev/hutch"

	"hutch.dev/hutch/internal/x/pattern"
)

// plan turns a request and its template into the record of a sandbox to be, or says
// which field is wrong. It reads no clock and no store.
func (c *Control) plan(req hutch.CreateSandbox, t hutch.Template, now time.Time) (hutch.Sandbox, error) {
	res, err := c.resources(req.Resources, t.Resources)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	ttl, err := c.ttl(req.TTL)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	profile, err := profileOf(req.Profile, t.Profile, c.cfg.ProjectProfiles[req.Project])
	if err != nil {
		return hutch.Sandbox{}, err
	}
	if err := checkIdle(req.IdleTimeout); err != nil {
		return hutch.Sandbox{}, err
	}
	if err := checkLease(req.Lease); err != nil {
		return hutch.Sandbox{}, err
	}
	if err := c.checkBudget(req.Budget); err != nil {
		return hutch.Sandbox{}, err
	}
	if err := checkPairs("env", req.Env, maxEnv, true); err != nil {
		return hutch.Sandbox{}, err
	}
	if err := checkPairs("metadata", req.Metadata, maxMetadata, false); err != nil {
		return hutch.Sandbox{}, err
	}
	if err := checkAccess(req.Access); err != nil {
		return hutch.Sandbox{}, err
	}
	ttl = c.clip(now, now.Add(ttl)).Sub(now)
	host := req.Hostname
	if host == "" {
		host = string(req.ID)
	}
	if err := checkHostname(host); err != nil {
		return hutch.Sandbox{}, err
	}
	return hutch.Sandbox{
		ID: req.ID, Project: req.Project, Template: t.Name, Image: t.Image, BuildID: t.BuildID,
		Hostname: host, State: hutch.StateNew, Resources: res, Profile: profile, Env: req.Env, Metadata: req.Metadata,
		Defaults: t.Defaults, TTL: ttl, IdleTimeout: req.IdleTimeout,
		CreatedAt: now, ActiveAt: now, ExpiresAt: now.Add(ttl), Access: req.Access,
		Lease: req.Lease, LeasedTo: leaseFrom(now, req.Lease), Budget: req.Budget,
	}, nil
}

// profileOf is the profile of a sandbox: the first of those that are given, else root.
func profileOf(given ...hutch.Profile) (hutch.Profile, error) {
	p := cmp.Or(cmp.Or(given...), hutch.ProfileRoot)
	if !p.Valid() {
		return p, hutch.FieldErrorf("profile", "must be %q or %q, not %.40q", hutch.ProfileRoot, hutch.ProfileLocked, p)
	}
	return p, nil
}

// resources fills what the request leaves open from the template, then from our own
// defaults, and holds the result against the limits.
func (c *Control) resources(r, t hutch.Resources) (hutch.Resources, error) {
	pick := func(a, b, d int) int {
		if a != 0 {
			return a
		}
		if b != 0 {
			return b
		}
		return d
	}
	f := fallbackResources
	out := hutch.Resources{
		MilliCPU: pick(r.MilliCPU, t.MilliCPU, f.MilliCPU),
		MemoryMB: pick(r.MemoryMB, t.MemoryMB, f.MemoryMB),
		DiskMB:   pick(r.DiskMB, t.DiskMB, f.DiskMB),
		DiskTier: r.DiskTier,
	}
	if out.DiskTier == "" {
		out.DiskTier = t.DiskTier
	}
	if out.DiskTier == "" {
		out.DiskTier = f.DiskTier
	}
	// A process costs about 4 MiB of the host's memory beside its own: more of them than
	// fit are refused inside, before they take the whole sandbox down.
	out.Pids = pick(r.Pids, t.Pids, max(64, out.MemoryMB/4))
	m := c.cfg.MaxResources
	for _, x := range []struct {
		field        string
		v, low, high int
		unit         string
	}{
		{"cpu", out.MilliCPU, 100, m.MilliCPU, "thousandths of a CPU"},
		{"memory_mb", out.MemoryMB, minMemoryMB, m.MemoryMB, "MiB"},
		{"disk_mb", out.DiskMB, minDiskMB, m.DiskMB, "MiB"},
		{"pids", out.Pids, minPids, m.Pids, "processes"},
	} {
		if x.v < x.low || x.v > x.high {
			return out, hutch.FieldErrorf(x.field, "must be from %d to %d %s, not %d", x.low, x.high, x.unit, x.v)
		}
	}
	switch out.DiskTier {
	case hutch.TierDisk:
	case hutch.TierMemory:
		// What is written there is the sandbox's memory: a layer as large as the memory
		// would let a full disk end the sandbox.
		if r.DiskMB == 0 {
			out.DiskMB = min(out.DiskMB, out.MemoryMB/2)
		}
		if out.DiskMB > out.MemoryMB*3/4 {
			return out, hutch.FieldErrorf("disk_mb", "on the memory tier at most three quarters of memory_mb (%d), not %d", out.MemoryMB*3/4, out.DiskMB)
		}
	default:
		return out, hutch.FieldErrorf("disk_tier", "must be %q or %q, not %q", hutch.TierDisk, hutch.TierMemory, out.DiskTier)
	}
	return out, nil
}

// ttl turns a request's TTL into the one that holds.
func (c *Control) ttl(t *time.Duration) (time.Duration, error) {
	switch {
	case t == nil:
		return min(c.cfg.DefaultTTL, c.cfg.MaxTTL), nil
	case *t == 0:
		return c.cfg.MaxTTL, nil
	case *t < time.Second || *t > c.cfg.MaxTTL:
		return 0, hutch.FieldErrorf("ttl_seconds", "must be from 1 to %d, or 0 for the longest allowed", int(c.cfg.MaxTTL/time.Second))
	}
	return *t, nil
}

// clip returns when a sandbox that was made at created, and is to end at end, ends: no later
// than the longest life allows.
func (c *Control) clip(created, end time.Time) time.Time {
	if last := created.Add(c.cfg.MaxAge); c.cfg.MaxAge > 0 && end.After(last) {
		return last
	}
	return end
}

// clipRecord makes true of a sandbox from before a restart what the longest life is now.
func (c *Control) clipRecord(ctx context.Context, sb hutch.Sandbox) (hutch.Sandbox, error) {
	last := c.clip(sb.CreatedAt, sb.ExpiresAt)
	if !last.Before(sb.ExpiresAt) {
		return sb, nil
	}
	out, err := c.update(ctx, sb.ID, sb.Epoch, func(s *hutch.Sandbox) error {
		s.TTL, s.ExpiresAt = max(0, s.TTL-s.ExpiresAt.Sub(last)), last
		return nil
	}, event(sb, "sandbox.extended", "expires_at", last.UTC().Format(time.RFC3339)))
	if err != nil {
		return sb, fmt.Errorf("bound the life of %s: %w", sb.ID, err)
	}
	return out, nil
}

func checkIdle(d time.Duration) error {
	if d != 0 && (d < time.Second || d > 30*24*time.Hour) {
		return hutch.FieldErrorf("idle_timeout_seconds", "must be from 1 to %d, or 0 for none", 30*24*3600)
	}
	return nil
}

// checkPairs holds a map of strings against its limits. Values are not repeated in errors.
func checkPairs(field string, m map[string]string, most int, env bool) error {
	if len(m) > most {
		return hutch.FieldErrorf(field, "has %d entries, the most is %d", len(m), most)
	}
	all := maxPairs
	if env {
		all = maxEnvLen
	}
	room := all
	for k, v := range m {
		room -= len(k) + len(v)
		switch {
		case room < 0:
			return hutch.FieldErrorf(field, "all entries together are longer than %d KiB", all>>10)
		case k == "" || strings.ContainsRune(k, 0) || (env && strings.ContainsRune(k, '=')):
			return hutch.FieldErrorf(field, "%q is not a name", k)
		case strings.ContainsRune(v, 0):
			return hutch.FieldErrorf(field, "the value of %q has a zero byte", k)
		case len(k)+len(v) > maxPairLen:
			return hutch.FieldErrorf(field, "the entry %.40q is longer than %d bytes", k, maxPairLen)
		}
	}
	return nil
}

// checkHostname accepts a DNS label: what sethostname, /etc/hosts and a prompt can all carry.
func checkHostname(h string) error {
	ok := len(h) >= 1 && len(h) <= 63 && h[0] != '-' && h[len(h)-1] != '-'
	for i := 0; ok && i < len(h); i++ {
		b := h[i]
		ok = b == '-' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
	}
	if !ok {
		return hutch.FieldErrorf("hostname", "must be 1 to 63 letters, digits and inner hyphens")
	}
	return nil
}

// checkExec fills what a command's request leaves open and holds it against the limits.
func checkExec(s *hutch.ExecSpec) error {
	if (s.Cmd == "") == (len(s.Argv) == 0) {
		return hutch.FieldErrorf("cmd", "give cmd (a string for the shell) or argv (run as it is), one of the two")
	}
	if len(s.Argv) > 0 && s.Argv[0] == "" {
		return hutch.FieldErrorf("argv", "its first element names the program and must not be empty")
	}
	for _, a := range append([]string{s.Cmd, s.Cwd, s.User}, s.Argv...) {
		if strings.ContainsRune(a, 0) {
			return hutch.FieldErrorf("cmd", "cmd, argv, cwd and user must not have zero bytes")
		}
	}
	if err := checkPairs("env", s.Env, maxEnv, true); err != nil {
		return err
	}
	if err := checkShape(s); err != nil {
		return err
	}
	if s.Timeout == 0 && !s.Background {
		s.Timeout = hutch.DefaultExecTimeout
	}
	if s.Timeout < 0 || s.Timeout > hutch.MaxExecTimeout {
		return hutch.FieldErrorf("timeout_seconds", "must be more than 0 and at most %d", int(hutch.MaxExecTimeout/time.Second))
	}
	if s.NoOutputTimeout < 0 || s.NoOutputTimeout > hutch.MaxExecTimeout {
		return hutch.FieldErrorf("no_output_timeout_seconds", "must be from 0 to %d", int(hutch.MaxExecTimeout/time.Second))
	}
	if s.Grace == 0 {
		s.Grace = hutch.DefaultGrace
	}
	if s.Grace < 0 || s.Grace > hutch.MaxGrace {
		return hutch.FieldErrorf("grace_seconds", "must be from 0 to %d", int(hutch.MaxGrace/time.Second))
	}
	if s.MaxOutputBytes == 0 {
		s.MaxOutputBytes = hutch.DefaultOutputBytes
	}
	if s.MaxOutputBytes < hutch.MinOutputBytes || s.MaxOutputBytes > hutch.MaxOutputBytes {
		return hutch.FieldErrorf("max_output_bytes", "must be from %d to %d", hutch.MinOutputBytes, hutch.MaxOutputBytes)
	}
	return nil
}

// shellName is what a shell session may be called.
var shellName = pattern.New(`^[A-Za-z0-9_-]{1,64}$`)

const maxTag = 64 // characters

// checkShape holds what a command is run in against what goes together.
func checkShape(s *hutch.ExecSpec) error {
	if s.Terminal != nil {
		size := *s.Terminal // the caller's own stays as it is
		if size == (hutch.TerminalSize{}) {
			size = hutch.TerminalSize{Rows: hutch.DefaultRows, Cols: hutch.DefaultCols}
		}
		if err := checkTerminal(size); err != nil {
			return err
		}
		s.Terminal = &size
	}
	switch {
	case s.Shell != "" && !shellName.MatchString(s.Shell):
		return hutch.FieldErrorf("shell", "must be 1 to 64 letters, digits, '_' and '-'")
	case s.Shell != "" && s.Cmd == "":
		return hutch.FieldErrorf("shell", "a shell session runs cmd, not argv")
	case s.Shell != "" && (s.Terminal != nil || s.Login):
		return hutch.FieldErrorf("shell", "does not go together with a terminal or login")
	case s.Login && s.Cmd == "":
		return hutch.FieldErrorf("login", "is for cmd, not for argv")
	case utf8.RuneCountInString(s.Tag) > maxTag || strings.ContainsFunc(s.Tag, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }):
		return hutch.FieldErrorf("tag", "must be printable text of at most %d characters", maxTag)
	}
	return nil
}

// checkTerminal holds a terminal's size against its limits.
func checkTerminal(t hutch.TerminalSize) error {
	if t.Rows < 1 || t.Rows > hutch.MaxRows || t.Cols < 1 || t.Cols > hutch.MaxCols {
		return hutch.FieldErrorf("terminal", "must have from 1 to %d rows and from 1 to %d columns", hutch.MaxRows, hutch.MaxCols)
	}
	return nil
}
