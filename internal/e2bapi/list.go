package e2bapi

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// maxPage is the most sandboxes of one page, and what a page has when nobody says.
const maxPage = 100

func (a *API) listV2(w http.ResponseWriter, c call) error {
	q, err := listQuery(c.URL.Query())
	if err != nil {
		return err
	}
	return a.list(w, c, q)
}

// listV1 lists what runs, all of it: it has no pages.
func (a *API) listV1(w http.ResponseWriter, c call) error {
	meta, err := parseMetadata(c.URL.Query().Get("metadata"))
	if err != nil {
		return err
	}
	all := []listedView{}
	q := hutch.SandboxQuery{Project: c.key.Project, States: []hutch.State{hutch.StateRunning}, Metadata: meta}
	for {
		page, next, err := a.svc.Sandboxes.ListSandboxes(c.Context(), q)
		if err != nil {
			return err
		}
		all = append(all, showPage(page)...)
		if q.Cursor = next; next == "" {
			return ok(w, http.StatusOK, all)
		}
	}
}

func (a *API) list(w http.ResponseWriter, c call, q hutch.SandboxQuery) error {
	q.Project = c.key.Project
	page, next, err := a.svc.Sandboxes.ListSandboxes(c.Context(), q)
	if err != nil {
		return err
	}
	if next != "" {
		w.Header().Set("X-Next-Token", next)
	}
	return ok(w, http.StatusOK, showPage(page))
}

func showPage(page []hutch.Sandbox) []listedView {
	out := make([]listedView, 0, len(page))
	for _, sb := range page {
		if !ending(sb) {
			out = append(out, showListed(sb))
		}
	}
	return out
}

// listQuery reads the query of a list.
func listQuery(v url.Values) (hutch.SandboxQuery, error) {
	q := hutch.SandboxQuery{Template: templateName(v.Get("template")), Cursor: v.Get("nextToken"), Limit: maxPage}
	var err error
	if q.Metadata, err = parseMetadata(v.Get("metadata")); err != nil {
		return q, err
	}
	if q.States, err = parseStates(v["state"]); err != nil {
		return q, err
	}
	if s := v.Get("startedAfter"); s != "" {
		if q.Since, err = time.Parse(time.RFC3339, s); err != nil {
			return q, hutch.FieldErrorf("startedAfter", "%.50q is no time in the form of RFC 3339", s)
		}
	}
	switch order := v.Get("order"); order {
	case "", "desc":
	case "asc":
		q.Oldest = true
	default:
		return q, hutch.FieldErrorf("order", "must be \"asc\" or \"desc\", not %.20q", order)
	}
	if s := v.Get("limit"); s != "" {
		if q.Limit, err = strconv.Atoi(s); err != nil || q.Limit < 1 || q.Limit > maxPage {
			return q, hutch.FieldErrorf("limit", "must be from 1 to %d", maxPage)
		}
	}
	return q, nil
}

// parseStates reads states, joined by commas or one by one; none is all.
func parseStates(values []string) ([]hutch.State, error) {
	var states []hutch.State
	for s := range strings.SplitSeq(strings.Join(values, ","), ",") {
		switch s {
		case "":
		case "running":
			states = append(states, hutch.StateRunning)
		case "paused":
			states = append(states, hutch.StatePaused)
		default:
			return nil, hutch.FieldErrorf("state", "must be \"running\" or \"paused\", not %.20q", s)
		}
	}
	if len(states) == 0 {
		return []hutch.State{hutch.StateRunning, hutch.StatePaused}, nil
	}
	return states, nil
}

// parseMetadata reads a filter by metadata. Clients escape each name and value, make a query
// of them, and send that as the value of one parameter: the server's own decoding of the
// URL has taken off one of three layers.
func parseMetadata(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	bad := hutch.FieldErrorf("metadata", "is not of the form name=value&name=value, escaped")
	query, err := url.QueryUnescape(s)
	if err != nil {
		return nil, bad
	}
	out := make(map[string]string)
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if name, err = url.PathUnescape(name); err != nil {
			return nil, bad
		}
		if value, err = url.PathUnescape(value); err != nil || name == "" {
			return nil, bad
		}
		out[name] = value
	}
	return out, nil
}
