package httpapi

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func (a *API) listTemplates(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	list, err := a.svc.Templates.ListTemplates(r.Context())
	if err != nil {
		return err
	}
	out := make([]api.Template, 0, len(list))
	for _, t := range list {
		out = append(out, showTemplate(t))
	}
	return writeJSON(w, http.StatusOK, out)
}

func (a *API) getTemplate(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	t, err := a.svc.Templates.Template(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showTemplate(t))
}

func showTemplate(t hutch.Template) api.Template {
	return api.Template{
		Name: t.Name, RootfsPath: "hutch://images/" + t.Image, SizeBytes: t.SizeBytes,
		BuildID: t.BuildID, Image: t.Image,
		CPU: float64(t.Resources.MilliCPU) / 1000, MemoryMB: t.Resources.MemoryMB,
		DiskMB: t.Resources.DiskMB, DiskTier: t.Resources.DiskTier, Pids: t.Resources.Pids,
		Profile: t.Profile,
		User:    t.Defaults.User, Cwd: t.Defaults.Cwd, CreatedAt: milli(t.CreatedAt),
		Aliases: t.Aliases, Description: t.Description, Entrypoint: t.Entrypoint,
	}
}

// maxKeyName bounds a key's label.
const maxKeyName = 100

func (a *API) createKey(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	want, err := decodeKey(body)
	if err != nil {
		return err
	}
	k, secret, err := a.newKey(r, want)
	if err != nil {
		return err
	}
	shown := showKey(k)
	if err := keepInstead(r, shown); err != nil {
		return err
	}
	shown.Key = secret
	return writeJSON(w, http.StatusCreated, shown)
}

// bodyWithoutQuery reads the body of a request that takes no query parameters.
func (a *API) bodyWithoutQuery(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if err := newQuery(r).check(); err != nil {
		return nil, err
	}
	return readBody(w, r, maxBody)
}

// keepInstead has v recorded for a repetition in place of the answer, because a key is
// shown once and never stored.
func keepInstead(r *http.Request, v any) error {
	k := infoOf(r).call
	if k == nil {
		return nil
	}
	var b bytes.Buffer
	if err := encode(&b, v); err != nil {
		return err
	}
	k.keep = b.Bytes()
	return nil
}

func (a *API) newKey(r *http.Request, want hutch.CreateKey) (hutch.APIKey, string, error) {
	want.Project = project(r)
	return a.svc.Keys.CreateKey(r.Context(), want)
}

func decodeKey(body []byte) (hutch.CreateKey, error) {
	var in api.CreateKey
	if err := decode(body, &in); err != nil {
		return hutch.CreateKey{}, err
	}
	out := hutch.CreateKey{Name: in.Name, Scope: in.Scope}
	if out.Scope == "" {
		out.Scope = hutch.ScopeRun
	}
	if !out.Scope.Valid() {
		return out, hutch.FieldErrorf("scope", "must be %s, %s or %s", hutch.ScopeRead, hutch.ScopeRun, hutch.ScopeAdmin)
	}
	if len(out.Name) > maxKeyName {
		return out, hutch.FieldErrorf("name", "must be at most %d bytes", maxKeyName)
	}
	var err error
	out.TTL, err = seconds("expires_in_seconds", in.ExpiresInSeconds, time.Second, longest)
	return out, err
}

func showKey(k hutch.APIKey) api.Key {
	return api.Key{
		Prefix: k.Prefix, Name: k.Name, Scope: k.Scope,
		CreatedAt: milli(k.CreatedAt), ExpiresAt: milli(k.ExpiresAt), RevokedAt: milli(k.RevokedAt),
	}
}

func (a *API) listKeys(w http.ResponseWriter, r *http.Request) error {
	return a.keys(w, r, func(ks []hutch.APIKey) any {
		out := make([]api.Key, 0, len(ks))
		for _, k := range ks {
			out = append(out, showKey(k))
		}
		return out
	})
}

func (a *API) keys(w http.ResponseWriter, r *http.Request, show func([]hutch.APIKey) any) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	ks, err := a.svc.Keys.ListKeys(r.Context(), project(r))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, show(ks))
}

func (a *API) revokeKey(w http.ResponseWriter, r *http.Request) error {
	if err := readNothing(w, r); err != nil {
		return err
	}
	err := a.svc.Keys.RevokeKey(r.Context(), project(r), r.PathValue("prefix"))
	if errors.Is(err, hutch.ErrNotFound) && repeated(r) {
		err = nil // an earlier attempt, whose answer was lost, revoked it
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) me(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	k := infoOf(r).key
	return writeJSON(w, http.StatusOK, api.Me{
		Project: k.Project, Prefix: k.Prefix, Name: k.Name, Scope: k.Scope, ExpiresAt: milli(k.ExpiresAt),
	})
}

func (a *API) createToken(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	want, err := decodeToken(body)
	if err != nil {
		return err
	}
	k, secret, err := a.newKey(r, want)
	if err != nil {
		return err
	}
	shown := showToken(k)
	if err := keepInstead(r, shown); err != nil {
		return err
	}
	shown.Token = secret
	return writeJSON(w, http.StatusOK, shown)
}

func decodeToken(body []byte) (hutch.CreateKey, error) {
	var in api.CreateToken
	if err := decode(body, &in); err != nil {
		return hutch.CreateKey{}, err
	}
	if in.Label != "" && in.Name != "" {
		return hutch.CreateKey{}, hutch.FieldErrorf("name", "give label or name, not both")
	}
	out := hutch.CreateKey{Name: in.Label + in.Name, Scope: hutch.ScopeRun}
	if len(out.Name) > maxKeyName {
		return out, hutch.FieldErrorf("label", "must be at most %d bytes", maxKeyName)
	}
	if in.ExpiresInDays != nil {
		s := *in.ExpiresInDays * 24 * 3600
		ttl, err := seconds("expires_in_days", &s, time.Second, longest)
		if err != nil {
			return out, hutch.FieldErrorf("expires_in_days", "must be more than 0 and at most %d", int(longest.Hours()/24))
		}
		out.TTL = ttl
	}
	return out, nil
}

func showToken(k hutch.APIKey) api.Token {
	return api.Token{Prefix: k.Prefix, Label: k.Name, CreatedAt: milli(k.CreatedAt)}
}

// listTokens lists valid keys only: the compatible form cannot say that one is
// revoked, or has expired.
func (a *API) listTokens(w http.ResponseWriter, r *http.Request) error {
	return a.keys(w, r, func(ks []hutch.APIKey) any {
		out := make([]api.Token, 0, len(ks))
		for _, k := range ks {
			if k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || k.ExpiresAt.After(time.Now())) {
				out = append(out, showToken(k))
			}
		}
		return out
	})
}

func (a *API) sandboxEvents(w http.ResponseWriter, r *http.Request) error {
	_, err := a.svc.Sandboxes.Sandbox(r.Context(), project(r), sandboxID(r))
	if err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
		return err
	}
	return a.answerEvents(w, r, sandboxID(r))
}

func (a *API) events(w http.ResponseWriter, r *http.Request) error {
	return a.answerEvents(w, r, "")
}

// answerEvents answers with a page of events, or streams them with ?follow=1.
func (a *API) answerEvents(w http.ResponseWriter, r *http.Request, id hutch.SandboxID) error {
	q := newQuery(r)
	want := hutch.EventQuery{Project: project(r), Sandbox: id, After: q.num("after", 0), Limit: q.limit(0)}
	follow, tail := q.flag("follow", false), q.num("tail", 0)
	if err := q.check(); err != nil {
		return err
	}
	if tail > maxPage {
		return hutch.FieldErrorf("tail", "must be at most %d", maxPage)
	}
	if tail > 0 && (want.After > 0 || want.Limit > 0) {
		return hutch.FieldErrorf("tail", "is about the last events: after and limit have no meaning with it")
	}
	if tail > 0 {
		var err error
		if want.After, err = a.tailOfEvents(r.Context(), want, int(tail)); err != nil {
			return err
		}
		want.Limit = int(tail)
	}
	if follow {
		if want.Limit != 0 && tail == 0 {
			return hutch.FieldErrorf("limit", "has no meaning with follow")
		}
		want.Limit = 0
		return a.watchEvents(w, r, want)
	}
	list, err := a.svc.Events.Events(r.Context(), want)
	if err != nil {
		return err
	}
	out := api.Events{Events: make([]api.Event, 0, len(list)), Next: want.After}
	for _, ev := range list {
		out.Events = append(out.Events, showEvent(ev))
		out.Next = ev.Seq
	}
	return writeJSON(w, http.StatusOK, out)
}

// tailOfEvents finds after which event the last n begin.
func (a *API) tailOfEvents(ctx context.Context, want hutch.EventQuery, n int) (int64, error) {
	want.Limit = maxPage
	last := []int64{0} // the event before the last n, and those
	for {
		page, err := a.svc.Events.Events(ctx, want)
		if err != nil {
			return 0, err
		}
		for _, ev := range page {
			last = append(last, ev.Seq)
			want.After = ev.Seq
		}
		if len(last) > n+1 {
			last = slices.Clone(last[len(last)-n-1:])
		}
		if len(page) < maxPage {
			return last[0], nil
		}
	}
}

func (a *API) watchEvents(w http.ResponseWriter, r *http.Request, want hutch.EventQuery) error {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		seq, err := strconv.ParseUint(id, 10, 63)
		if err != nil {
			return hutch.FieldErrorf("Last-Event-ID", "is not an id from this stream")
		}
		want.After = int64(seq)
	}
	out := newEventStream(w, a.cfg.Keepalive)
	defer out.close()
	err := a.svc.Events.WatchEvents(r.Context(), want, func(ev hutch.Event) error {
		return out.send(api.EventEvent, strconv.FormatInt(ev.Seq, 10), showEvent(ev))
	})
	if err != nil && !errors.Is(err, errClientGone) {
		err = out.send(api.EventError, "", errorBody(r, err))
	}
	return ignoreGone(err)
}

func showEvent(ev hutch.Event) api.Event {
	return api.Event{
		Seq: ev.Seq, Time: milli(ev.At), SandboxID: ev.Sandbox, ExecID: ev.Exec, Type: ev.Type, Data: ev.Data, Payload: ev.Data,
	}
}
