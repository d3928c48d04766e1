package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// sight is what is there when everything has come to rest.
type sight struct {
	records []api.Sandbox // all, dead ones too
	kernels int
	leaks   []string
	files   map[hutch.SandboxID][]string // tokens found in those that live
}

// judge lets the server settle and completes the report.
func (r *run) judge(ctx context.Context) error {
	var s sight
	settled := r.until(ctx, "records and host agree", func(ctx context.Context) (string, error) {
		now, err := r.look(ctx)
		if err != nil {
			return "", err
		}
		s = now
		if why := s.unrest(); why != "" {
			return why, nil
		}
		return s.awaited(time.Now()), nil
	})
	if settled != nil && !errors.Is(settled, errTooLong) {
		return settled
	}
	if settled != nil {
		r.notes.violated("%v", settled)
	}
	s.files = map[hutch.SandboxID][]string{}
	for _, sb := range s.records {
		if sb.State != hutch.StateRunning {
			continue
		}
		res, err := r.c.Exec(ctx, sb.ID, api.ExecRequest{Cmd: "cat /root/tokens 2>/dev/null; true"})
		if err != nil {
			r.notes.violated("%s, on record as running, does not answer: %v", sb.ID, err)
			continue
		}
		s.files[sb.ID] = strings.Fields(res.Stdout)
	}
	r.notes.mu.Lock()
	defer r.notes.mu.Unlock()
	r.rep.Calls = maps.Clone(r.notes.calls)
	r.rep.Violations = append(r.rep.Violations, r.notes.violates...)
	if r.notes.unsaid > 0 {
		r.rep.Violations = append(r.rep.Violations, fmt.Sprintf("%d more like these", r.notes.unsaid))
	}
	r.rep.Violations = append(r.rep.Violations, s.violations(r.notes.boxes, time.Now())...)
	for _, b := range r.notes.boxes {
		if b.struck {
			r.rep.Struck++
		}
	}
	return nil
}

func (r *run) look(ctx context.Context) (sight, error) {
	var s sight
	for sb, err := range r.c.Sandboxes(ctx, client.SandboxFilter{All: true}) {
		if err != nil {
			return s, fmt.Errorf("list the records: %w", err)
		}
		s.records = append(s.records, sb)
	}
	var err error
	if s.kernels, s.leaks, err = r.m.Remains(ctx); err != nil {
		return s, fmt.Errorf("look at the host: %w", err)
	}
	return s, nil
}

// unrest says what is still under way; empty if nothing is.
func (s sight) unrest() string {
	living := 0
	for _, sb := range s.records {
		switch {
		case sb.State == hutch.StateDead:
			continue
		case sb.Transition != "" || sb.State == hutch.StateNew:
			return fmt.Sprintf("%s is %s %s", sb.ID, sb.State, sb.Transition)
		}
		living++
	}
	if s.kernels != living {
		return fmt.Sprintf("%d sandboxes are on the host, %d on record", s.kernels, living)
	}
	if len(s.leaks) > 0 {
		return "leaks: " + strings.Join(s.leaks, "; ")
	}
	return ""
}

// awaited says which sandbox's time is nearly over, so that its end is to be seen.
func (s sight) awaited(now time.Time) string {
	for _, sb := range s.records {
		if sb.State != hutch.StateDead && now.Add(settleTime).After(sb.ExpiresAt) {
			return fmt.Sprintf("%s ends at %s", sb.ID, sb.ExpiresAt)
		}
	}
	return ""
}

// late is how late the end of a sandbox may come: the keeper leaves ten seconds to a server that
// runs, and a server that dies before it has told the keeper of a deadline is started first.
const late = 20 * time.Second

// onTime says what is wrong with the end of a sandbox that came to its deadline. The API
// shows whole seconds, so it may seem to be one early.
func onTime(sb api.Sandbox) error {
	over := sb.EndedAt.Sub(sb.ExpiresAt)
	if sb.EndReason != hutch.EndExpired || over < -time.Second || over > late {
		return fmt.Errorf("it was left to its deadline, and ended as %s (%s) %s behind it", sb.EndReason, sb.EndDetail, over)
	}
	return nil
}

// violations compares what is there with what callers were told and what was done.
func (s sight) violations(boxes []*box, now time.Time) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if why := s.unrest(); why != "" {
		add("%s", why)
	}
	known := map[hutch.SandboxID]*box{}
	for _, b := range boxes {
		known[b.id] = b
	}
	seen := map[hutch.SandboxID]bool{}
	for _, sb := range s.records {
		seen[sb.ID] = true
		b := known[sb.ID]
		dead := sb.State == hutch.StateDead
		switch {
		case b == nil && !dead:
			add("%s lives, and no caller was told of it", sb.ID)
		case b == nil && sb.EndReason != hutch.EndStartFailed:
			add("%s ended as %s, and no caller was told of it", sb.ID, sb.EndReason)
		case b == nil:
		case b.killed && !dead:
			add("%s lives, and its caller was told that it was killed", sb.ID)
		case b.killed && sb.EndReason != hutch.EndKilled && !b.struck:
			add("%s was killed by its caller, and is on record as %s", sb.ID, sb.EndReason)
		case dead && (b.left || !b.killed && !b.struck && sb.EndReason == hutch.EndExpired):
			if err := onTime(sb); err != nil {
				add("%s: %v", sb.ID, err)
			}
		case dead && !b.killed && !b.struck:
			add("%s ended as %s (%s), and nothing was done to it", sb.ID, sb.EndReason, sb.EndDetail)
		case dead && b.struck && sb.EndReason != hutch.EndCrashed && (!b.asked || sb.EndReason != hutch.EndKilled):
			add("%s crashed, and is on record as %s (%s)", sb.ID, sb.EndReason, sb.EndDetail)
		case !dead && b.struck:
			add("%s was broken, and is on record as %s", sb.ID, sb.State)
		case !dead && now.After(sb.ExpiresAt):
			add("%s lives beyond its end at %s", sb.ID, sb.ExpiresAt)
		case sb.State == hutch.StateRunning:
			if err := b.compare(s.files[sb.ID]); err != nil {
				add("%s: %v", sb.ID, err)
			}
		}
	}
	for _, b := range boxes {
		if !seen[b.id] {
			add("%s was made, and is not on record", b.id)
		}
	}
	return out
}
