package e2bapi

import (
	"errors"
	"maps"
	"net/http"
	"time"

	"hutch.dev/hutch"
)

// clientID is a required member that means nothing any more.
const clientID = "hutch"

// timeFormat is what every client reads, to the millisecond: they keep no more, and one
// that sends a time back must find itself in it.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

func showTime(t time.Time) string { return t.UTC().Truncate(time.Millisecond).Format(timeFormat) }

// sandboxView is a sandbox as create and connect answer with it.
type sandboxView struct {
	TemplateID   string          `json:"templateID"`
	SandboxID    hutch.SandboxID `json:"sandboxID"`
	ClientID     string          `json:"clientID"`
	EnvdVersion  string          `json:"envdVersion"`
	Alias        string          `json:"alias,omitempty"`
	AgentToken   string          `json:"envdAccessToken,omitempty"`
	TrafficToken string          `json:"trafficAccessToken,omitempty"`
	Domain       string          `json:"domain,omitempty"`
}

// listedView is a sandbox in a list.
type listedView struct {
	TemplateID  string            `json:"templateID"`
	SandboxID   hutch.SandboxID   `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	EnvdVersion string            `json:"envdVersion"`
	Alias       string            `json:"alias,omitempty"`
	StartedAt   string            `json:"startedAt"`
	EndAt       string            `json:"endAt"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	State       string            `json:"state"`
	Metadata    map[string]string `json:"metadata"`
}

// detailView is a sandbox on its own.
type detailView struct {
	listedView
	AgentToken string        `json:"envdAccessToken,omitempty"`
	Domain     string        `json:"domain,omitempty"`
	Internet   bool          `json:"allowInternetAccess"`
	Network    network       `json:"network"`
	Lifecycle  lifecycleView `json:"lifecycle"`
	Volumes    []struct{}    `json:"volumeMounts"`
}

type lifecycleView struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

func (a *API) showSandbox(sb hutch.Sandbox) sandboxView {
	v := sandboxView{
		TemplateID: sb.Template, SandboxID: sb.ID, ClientID: clientID, EnvdVersion: AgentVersion,
		Alias: sb.Template, AgentToken: a.agentToken(sb), Domain: a.cfg.Domain,
	}
	if sb.Access.PrivatePorts {
		v.TrafficToken = a.svc.Tokens.Token(sb.ID, TokenTraffic)
	}
	return v
}

// agentToken is what the agent's callers must show; empty if nothing.
func (a *API) agentToken(sb hutch.Sandbox) string {
	if openAgent(sb) {
		return ""
	}
	a.signers.add(sb.ID)
	return a.svc.Tokens.Token(sb.ID, TokenAgent)
}

// openAgent reports whether a sandbox's agent asks for no token. Only who made it through
// this API can have wanted that: others were never told that there is such a door.
func openAgent(sb hutch.Sandbox) bool {
	return sb.Access.Surface == hutch.SurfaceE2B && !sb.Access.Secure
}

func showListed(sb hutch.Sandbox) listedView {
	v := listedView{
		TemplateID: sb.Template, SandboxID: sb.ID, ClientID: clientID, EnvdVersion: AgentVersion, Alias: sb.Template,
		// The time of creation, not of the start milliseconds later: lists are ordered and
		// filtered by it.
		StartedAt: showTime(sb.CreatedAt), EndAt: showTime(sb.ExpiresAt),
		CPUCount: sb.Resources.CPUs(), MemoryMB: sb.Resources.MemoryMB, DiskSizeMB: sb.Resources.DiskMB,
		State: showState(sb), Metadata: showMetadata(sb),
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	return v
}

// showMetadata is a sandbox's metadata without what the native API, through which it was
// made, never shows. Sandboxes made through this one were promised nothing of the kind.
func showMetadata(sb hutch.Sandbox) map[string]string {
	meta := maps.Clone(sb.Metadata)
	if sb.Access.Surface != hutch.SurfaceE2B {
		maps.DeleteFunc(meta, func(k, _ string) bool { return hutch.SecretMetadata(k) })
	}
	return meta
}

func showState(sb hutch.Sandbox) string {
	if sb.State == hutch.StatePaused {
		return "paused"
	}
	return "running"
}

// shown is the record of a call's sandbox. One that is starting or ending is not there: its
// maker has not been told of it, or its end has been asked for.
func (a *API) shown(c call) (hutch.Sandbox, error) {
	sb, err := a.svc.Sandboxes.SandboxByID(c.Context(), c.sandbox())
	gone := err == nil && (sb.Project != c.key.Project || sb.State == hutch.StateNew || ending(sb))
	if gone || errors.Is(err, hutch.ErrNotFound) || errors.Is(err, hutch.ErrSandboxGone) {
		return hutch.Sandbox{}, notFound(c.sandbox(), err)
	}
	return sb, err
}

// ending reports whether a sandbox has ended or is being ended.
func ending(sb hutch.Sandbox) bool {
	return sb.State == hutch.StateDead || sb.Transition == hutch.Killing
}

// notFound is what clients call a sandbox that is not there; why it is not is added.
func notFound(id hutch.SandboxID, why error) error {
	if he := (*hutch.Error)(nil); errors.As(why, &he) && he.Code == hutch.CodeSandboxGone {
		return hutch.Errorf(hutch.CodeNotFound, "sandbox %.60q not found: %s", id, he.Message)
	}
	return hutch.Errorf(hutch.CodeNotFound, "sandbox %.60q not found", id)
}

func (a *API) info(w http.ResponseWriter, c call) error {
	sb, err := a.shown(c)
	if err != nil {
		return err
	}
	public := !sb.Access.PrivatePorts
	token := ""
	if c.key.Scope.Includes(hutch.ScopeRun) { // with it commands can be run
		token = a.agentToken(sb)
	}
	return ok(w, http.StatusOK, detailView{
		listedView: showListed(sb), AgentToken: token, Domain: a.cfg.Domain,
		Network:   network{AllowPublicTraffic: &public, MaskRequestHost: sb.Access.MaskHost},
		Lifecycle: lifecycleView{OnTimeout: "kill"}, Volumes: []struct{}{},
	})
}

func (a *API) kill(w http.ResponseWriter, c call) error {
	if _, err := a.svc.Sandboxes.KillSandbox(c.Context(), c.key.Project, c.sandbox()); err != nil {
		if errors.Is(err, hutch.ErrNotFound) || errors.Is(err, hutch.ErrSandboxGone) {
			return notFound(c.sandbox(), err)
		}
		return err
	}
	a.processes.forget(c.sandbox())
	a.signers.forget(c.sandbox())
	return noContent(w)
}

// timeoutBody is the body of every call that is about a sandbox's end.
type timeoutBody struct {
	Timeout  *int64 `json:"timeout"`  // seconds
	Duration *int64 `json:"duration"` // seconds; of a refresh
	Memory   *bool  `json:"memory"`

	AutoPause *bool `json:"autoPause"` // of a resume
}

// after reads a number of seconds from now, cut at the longest that is allowed.
func (a *API) after(seconds int64) time.Time {
	// An end that is now or was is one that comes with the next look at the deadlines.
	d := time.Duration(min(max(seconds, 0), int64(a.cfg.MaxTTL/time.Second))) * time.Second
	return time.Now().Add(max(d, time.Second))
}

func (a *API) setTimeout(w http.ResponseWriter, c call) error {
	var body timeoutBody
	if err := a.readJSON(w, c, &body, false); err != nil {
		return err
	}
	if body.Timeout == nil {
		return hutch.FieldErrorf("timeout", "is missing: say in how many seconds the sandbox is to end")
	}
	if _, err := a.shown(c); err != nil {
		return err
	}
	if _, err := a.svc.Lifetimes.ExtendTo(c.Context(), c.key.Project, c.sandbox(), a.after(*body.Timeout), false); err != nil {
		return err
	}
	return noContent(w)
}

// maxRefresh is the longest refresh, in seconds.
const maxRefresh = 3600

func (a *API) refresh(w http.ResponseWriter, c call) error {
	var body timeoutBody
	if err := a.readJSON(w, c, &body, true); err != nil {
		return err
	}
	d := int64(defaultTTLv1 / time.Second)
	if body.Duration != nil {
		d = *body.Duration
	}
	if d < 0 || d > maxRefresh {
		return hutch.FieldErrorf("duration", "must be from 0 to %d seconds, not %d", maxRefresh, d)
	}
	if _, err := a.shown(c); err != nil {
		return err
	}
	if _, err := a.svc.Lifetimes.ExtendTo(c.Context(), c.key.Project, c.sandbox(), a.after(d), true); err != nil {
		return err
	}
	return noContent(w)
}

func (a *API) connectV2(w http.ResponseWriter, c call) error {
	var body timeoutBody
	if err := a.readJSON(w, c, &body, true); err != nil {
		return err
	}
	return a.attach(w, c, body, defaultTTLv2)
}

func (a *API) connectV1(w http.ResponseWriter, c call) error {
	var body timeoutBody
	if err := a.readJSON(w, c, &body, false); err != nil {
		return err
	}
	if body.Timeout == nil {
		return hutch.FieldErrorf("timeout", "is missing: say for how many seconds the sandbox is to stay")
	}
	return a.attach(w, c, body, 0)
}

func (a *API) resume(w http.ResponseWriter, c call) error {
	var body timeoutBody
	if err := a.readJSON(w, c, &body, true); err != nil {
		return err
	}
	if err := (newSandbox{AutoPause: body.AutoPause}).refuse(); err != nil {
		return err
	}
	sb, err := a.shown(c)
	if err != nil {
		return err
	}
	if sb.State == hutch.StateRunning {
		return hutch.Errorf(hutch.CodeConflict, "sandbox %s is running", sb.ID)
	}
	return a.attach(w, c, body, defaultTTLv1)
}

// attach makes sure that a sandbox runs, for so long at least, and answers with what it takes
// to reach it. Its end is never made to come sooner.
func (a *API) attach(w http.ResponseWriter, c call, body timeoutBody, ttl time.Duration) error {
	var err error
	if body.Timeout != nil {
		if ttl, err = a.ttl(*body.Timeout); err != nil {
			return err
		}
	}
	sb, err := a.shown(c)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if sb.State == hutch.StatePaused {
		if body.Memory != nil && !*body.Memory {
			return unsupported("memory: a paused sandbox goes on with its memory here, it cannot be started anew from its disk")
		}
		if _, err = a.svc.Lifetimes.ResumeSandbox(c.Context(), c.key.Project, sb.ID); err != nil {
			return err
		}
		status = http.StatusCreated
	}
	if sb, err = a.svc.Lifetimes.ExtendTo(c.Context(), c.key.Project, sb.ID, time.Now().Add(ttl), true); err != nil {
		return err
	}
	return ok(w, status, a.showSandbox(sb))
}
