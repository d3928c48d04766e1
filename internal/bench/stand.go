package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/client"
)

// standing is the sandboxes of a benchmark that makes one for each subject and keeps it.
type standing struct {
	api   *client.Client
	sid   hutch.SandboxID
	floor *floorBox // nil without a floor
}

// stand makes the sandboxes, and the report.
func stand(ctx context.Context, kind string, s Settings, c *client.Client, floor *Floor) (_ *standing, _ *Report, err error) {
	rep, err := begin(ctx, kind, s, c)
	if err != nil {
		return nil, nil, err
	}
	req := s.request()
	ttl := (s.Limit + time.Minute).Seconds()
	req.TTLSeconds = &ttl
	sb, err := c.CreateSandbox(ctx, req)
	if err != nil {
		return nil, nil, fmt.Errorf("make a sandbox: %w", err)
	}
	st := &standing{api: c, sid: sb.ID}
	if !s.Baseline {
		return st, rep, nil
	}
	if st.floor, err = floor.start(ctx, *rep.Settings.Sandbox); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make the floor's sandbox: %w", err), st.kill(ctx))
	}
	return st, rep, nil
}

// subjects are those there are sandboxes for, with what one run of a subject is.
func (st *standing) subjects(run func(ctx context.Context, name string, t *clock) error) []subject {
	names := []string{SubjectHutch}
	if st.floor != nil {
		names = append(names, SubjectFloor)
	}
	var out []subject
	for _, name := range names {
		out = append(out, subject{name, func(ctx context.Context, t *clock) error { return run(ctx, name, t) }})
	}
	return out
}

// kill ends the sandboxes.
func (st *standing) kill(ctx context.Context) error {
	err := killBox(ctx, st.api, st.sid)
	if st.floor != nil {
		err = errors.Join(err, st.floor.kill(ctx))
	}
	return err
}
