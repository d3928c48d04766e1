package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// longest bounds every duration on the wire, far above what any operator allows, so
// that no number overflows on its way to the service, which has its own limits.
const longest = 10 * 365 * 24 * time.Hour

func (a *API) listSandboxes(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.SandboxQuery{
		Project: project(r), Template: q.str("template"), Metadata: q.pairs("metadata"),
		Cursor: q.str("cursor"), Limit: q.limit(maxPage),
	}
	var err error
	if want.States, err = states(q.str("state")); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	list, next, err := a.svc.Sandboxes.ListSandboxes(r.Context(), want)
	if err != nil {
		return err
	}
	out := make([]api.Sandbox, 0, len(list))
	for _, sb := range list {
		out = append(out, showSandbox(sb))
	}
	nextPage(w, r, next)
	return writeJSON(w, http.StatusOK, out)
}

// states reads a comma-separated list of states; "all" and "" stand for several.
func states(s string) ([]hutch.State, error) {
	alive := []hutch.State{hutch.StateNew, hutch.StateRunning, hutch.StatePaused}
	switch s {
	case "":
		return alive, nil
	case "all":
		return append(alive, hutch.StateDead), nil
	}
	var out []hutch.State
	for name := range strings.SplitSeq(s, ",") {
		switch st := hutch.State(name); st {
		case hutch.StateNew, hutch.StateRunning, hutch.StatePaused, hutch.StateDead:
			out = append(out, st)
		default:
			return nil, hutch.FieldErrorf("state", "must be all, or some of new, running, paused and dead with commas between")
		}
	}
	return out, nil
}

// nextPage tells the caller where the next page is: bare arrays, which published clients
// want, leave no room for it in the body.
func nextPage(w http.ResponseWriter, r *http.Request, cursor string) {
	if cursor == "" {
		return
	}
	q := r.URL.Query()
	q.Del(tokenParam)
	q.Set("cursor", cursor)
	next := url.URL{Path: r.URL.Path, RawQuery: q.Encode()}
	w.Header().Set(api.HeaderNextCursor, cursor)
	w.Header().Set("Link", fmt.Sprintf("<%s>; rel=\"next\"", next.String()))
}

func sandboxID(r *http.Request) hutch.SandboxID { return hutch.SandboxID(r.PathValue("id")) }

// alive loads a sandbox that has not ended.
func (a *API) alive(r *http.Request) (hutch.Sandbox, error) {
	sb, err := a.svc.Sandboxes.Sandbox(r.Context(), project(r), sandboxID(r))
	if err == nil && sb.State == hutch.StateDead {
		err = gone(sb)
	}
	return sb, err
}

func (a *API) getSandbox(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	sb, err := a.alive(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showSandbox(sb))
}

// checkMaskHost refuses what can be no Host header.
func checkMaskHost(s string) error {
	plain := strings.ReplaceAll(s, "${PORT}", "1")
	if len(s) > 255 || strings.ContainsFunc(plain, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]", c)
	}) {
		return hutch.FieldErrorf("mask_host", "must be a host name, with ${PORT} where the port is to be")
	}
	return nil
}

// updateSandbox changes what is known of a sandbox.
func (a *API) updateSandbox(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	var in api.UpdateSandbox
	if err := decode(body, &in); err != nil {
		return err
	}
	if in.MaskHost != nil {
		if err := checkMaskHost(*in.MaskHost); err != nil {
			return err
		}
	}
	sb, err := a.alive(r)
	if err != nil {
		return err
	}
	if len(in.Metadata) > 0 {
		if sb, err = a.svc.Settings.UpdateMetadata(r.Context(), project(r), sb.ID, in.Metadata); err != nil {
			return err
		}
	}
	if in.PrivatePorts != nil || in.MaskHost != nil {
		sb, err = a.svc.Settings.UpdateAccess(r.Context(), project(r), sb.ID, func(acc *hutch.Access) error {
			if in.PrivatePorts != nil {
				acc.PrivatePorts = *in.PrivatePorts
			}
			if in.MaskHost != nil {
				acc.MaskHost = *in.MaskHost
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return writeJSON(w, http.StatusOK, showSandbox(sb))
}

func (a *API) killSandbox(w http.ResponseWriter, r *http.Request) error {
	return act(w, r, a.svc.Sandboxes.KillSandbox)
}

func (a *API) pauseSandbox(w http.ResponseWriter, r *http.Request) error {
	return act(w, r, a.svc.Pausing.PauseSandbox)
}

func (a *API) resumeSandbox(w http.ResponseWriter, r *http.Request) error {
	return act(w, r, a.svc.Pausing.ResumeSandbox)
}

// act carries out an action that takes and answers nothing.
func act(w http.ResponseWriter, r *http.Request, do func(context.Context, hutch.ProjectID, hutch.SandboxID) (hutch.Sandbox, error)) error {
	if err := readNothing(w, r); err != nil {
		return err
	}
	_, err := do(r.Context(), project(r), sandboxID(r))
	if errors.Is(err, hutch.ErrSandboxGone) && r.Method == http.MethodDelete && repeated(r) {
		err = nil // the kill of an earlier attempt, whose answer was lost
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// readNothing refuses what is said to an action that takes neither parameters nor a body.
func readNothing(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	return readEmptyBody(w, r)
}

// readEmptyBody reads the body of an action that takes none. Published clients send an
// empty text; anything that claims to be an object with fields is refused.
func readEmptyBody(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r, maxBody)
	if err != nil {
		return err
	}
	if body = bytes.TrimSpace(body); len(body) == 0 || body[0] != '{' {
		return nil
	}
	return decode(body, &struct{}{})
}

func (a *API) getLifecycle(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	sb, err := a.alive(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showLifecycle(sb, time.Now()))
}

func (a *API) updateLifecycle(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	body, err := readBody(w, r, maxBody)
	if err != nil {
		return err
	}
	ttl, err := decodeLifecycle(body)
	if err != nil {
		return err
	}
	sb, err := a.alive(r)
	if err != nil {
		return err
	}
	if ttl != nil {
		if _, err := a.svc.Sandboxes.ExtendSandbox(r.Context(), project(r), sb.ID, *ttl); err != nil {
			return err
		}
		if sb, err = a.alive(r); err != nil {
			return err
		}
	}
	return writeJSON(w, http.StatusOK, showLifecycle(sb, time.Now()))
}

func decodeLifecycle(body []byte) (*time.Duration, error) {
	var in api.UpdateLifecycle
	if err := decode(body, &in); err != nil {
		return nil, err
	}
	if err := refuseUnsupported(api.CreateSandbox{Persistent: in.Persistent}); err != nil {
		return nil, err
	}
	ttl, err := seconds("ttl_seconds", in.TTLSeconds, 0, longest)
	if err != nil || in.TTLSeconds == nil {
		return nil, err
	}
	return &ttl, nil
}
