package httpapi

import (
	"context"
	"math"
	"net/http"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func (a *API) createSandbox(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	body, err := readBody(w, r, maxBody)
	if err != nil {
		return err
	}
	req, setup, err := decodeCreate(body)
	if err != nil {
		return err
	}
	req.Project = project(r)
	if k := infoOf(r).call; k != nil {
		req.ID = hutch.SandboxID(k.ref)
	}
	sb, err := a.svc.Sandboxes.CreateSandbox(r.Context(), req)
	if err != nil {
		return err
	}
	if sb.State == hutch.StateDead { // an earlier call under this key made it
		return gone(sb)
	}
	infoOf(r).sandbox = sb.ID
	out := showSandbox(sb)
	if setup != nil {
		if out.SetupExecID, err = a.setUp(r, sb, *setup); err != nil {
			return err
		}
	}
	w.Header().Set("Location", api.Version+"/sandboxes/"+string(sb.ID))
	return writeJSON(w, http.StatusCreated, out)
}

// claimPrepared finds a machine for a create that is under an Idempotency-Key: its id is on
// record before the create begins.
func (a *API) claimPrepared(r *http.Request, body []byte) (id string, release func()) {
	req, _, err := decodeCreate(body)
	if err != nil || a.svc.Prepared == nil {
		return "", func() {}
	}
	req.Project = project(r)
	sid, release := a.svc.Prepared.ClaimPrepared(r.Context(), req)
	return string(sid), release
}

// The limit of a setup that names none, and the tag by which it is found.
const (
	defaultSetupTimeout = time.Hour
	setupTag            = "setup"
)

// setUp starts a sandbox's first command. Its id comes of the sandbox's, so that a create
// that is made again starts nothing twice. A sandbox that cannot be set up is ended: its
// caller will not learn that there is one.
func (a *API) setUp(r *http.Request, sb hutch.Sandbox, spec hutch.ExecSpec) (hutch.ExecID, error) {
	x, err := a.svc.Execs.StartExec(r.Context(), sb.Project, sb.ID, hutch.ExecRequest{ID: hutch.ExecID("e" + string(sb.ID)[1:]), Spec: spec})
	if err != nil {
		if _, killErr := a.svc.Sandboxes.KillSandbox(context.WithoutCancel(r.Context()), sb.Project, sb.ID); killErr != nil {
			a.log.WarnContext(r.Context(), "a sandbox that could not be set up goes on", "sandbox", sb.ID, "error", killErr)
		}
		return "", err
	}
	return x.ID, nil
}

// setupSpec is the command that a create asks for; nil if none.
func setupSpec(in api.CreateSandbox) (*hutch.ExecSpec, error) {
	if in.Setup == "" {
		if in.SetupTimeoutSeconds != nil {
			return nil, hutch.FieldErrorf("setup_timeout_seconds", "has no meaning without setup")
		}
		return nil, nil
	}
	limit, err := seconds("setup_timeout_seconds", in.SetupTimeoutSeconds, 0, hutch.MaxExecTimeout)
	switch {
	case err != nil:
		return nil, err
	case in.SetupTimeoutSeconds == nil:
		limit = defaultSetupTimeout
	case limit == 0:
		return nil, hutch.FieldErrorf("setup_timeout_seconds", "must be more than 0")
	}
	return &hutch.ExecSpec{Cmd: in.Setup, Timeout: limit, Background: true, Tag: setupTag, Grace: hutch.DefaultGrace, MaxOutputBytes: hutch.DefaultOutputBytes}, nil
}

// decodeCreate reads the body of a create. Limits that depend on the operator are the service's.
func decodeCreate(body []byte) (hutch.CreateSandbox, *hutch.ExecSpec, error) {
	var in api.CreateSandbox
	if err := decode(body, &in); err != nil {
		return hutch.CreateSandbox{}, nil, err
	}
	out, err := planCreate(in)
	if err != nil {
		return hutch.CreateSandbox{}, nil, err
	}
	setup, err := setupSpec(in)
	return out, setup, err
}

func planCreate(in api.CreateSandbox) (hutch.CreateSandbox, error) {
	if err := refuseUnsupported(in); err != nil {
		return hutch.CreateSandbox{}, err
	}
	out := hutch.CreateSandbox{Template: in.Template, Env: in.Env, Metadata: in.Metadata, Hostname: in.Hostname, Profile: in.Profile}
	out.Access = hutch.Access{PrivatePorts: in.PrivatePorts, MaskHost: in.MaskHost}
	if err := checkMaskHost(in.MaskHost); err != nil {
		return out, err
	}
	if out.Template == "" {
		out.Template = api.DefaultTemplate
	}
	var err error
	if out.Resources, err = resources(in); err != nil {
		return out, err
	}
	if out.Budget, err = budget(in.Budget); err != nil {
		return out, err
	}
	ttl, err := seconds("ttl_seconds", in.TTLSeconds, 0, longest)
	if err != nil {
		return out, err
	}
	if in.TTLSeconds != nil {
		out.TTL = &ttl
	}
	if out.IdleTimeout, err = seconds("idle_timeout_seconds", in.IdleTimeoutSeconds, 0, longest); err != nil {
		return out, err
	}
	out.Lease, err = seconds("lease_seconds", in.LeaseSeconds, 0, longest)
	return out, err
}

// refuseUnsupported refuses what a create asks for that is known but not built.
func refuseUnsupported(in api.CreateSandbox) error {
	refuse := func(field, sentence string) error {
		e := hutch.Errorf(hutch.CodeUnsupported, "%s: %s", field, sentence)
		e.Field = field
		return e
	}
	switch {
	case in.Persistent != nil && *in.Persistent:
		return refuse("persistent", "sandboxes that outlive their ttl on disk are not supported by this server; ask for a longer ttl_seconds")
	case in.FromSnapshot != "":
		return refuse("from_snapshot", "snapshots are not supported by this server; name a template")
	case len(in.Volumes) > 0:
		return refuse("volumes", "volumes are not supported by this server; leave the field out")
	}
	return nil
}

// maxCount bounds the whole numbers of a create, so that sums of them never overflow.
const maxCount = math.MaxInt32

func resources(in api.CreateSandbox) (hutch.Resources, error) {
	out := hutch.Resources{DiskTier: in.DiskTier}
	if c := in.CPU; c != nil {
		milli := math.Round(*c * 1000)
		if math.IsNaN(milli) || milli < 1 || milli > maxCount { // a form can say NaN
			return out, hutch.FieldErrorf("cpu", "must be more than 0, in steps of 0.001 (1.5 is one and a half CPUs); leave it out for the template's")
		}
		out.MilliCPU = int(milli)
	}
	for _, f := range []struct {
		name string
		in   *int
		out  *int
	}{{"memory_mb", in.MemoryMB, &out.MemoryMB}, {"disk_mb", in.DiskMB, &out.DiskMB}, {"pids", in.Pids, &out.Pids}} {
		if f.in == nil {
			continue
		}
		if *f.in < 1 || *f.in > maxCount {
			return out, hutch.FieldErrorf(f.name, "must be more than 0; leave it out for the template's")
		}
		*f.out = *f.in
	}
	return out, nil
}
