package httpapi

import (
	"net/http"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// defaultAuditAge is how far back the audit goes when nothing is asked for.
const defaultAuditAge = 24 * time.Hour

// audit lists a project's calls that changed something, or tried to.
func (a *API) audit(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.AuditQuery{Project: project(r), Since: q.instant("since", time.Now().Add(-defaultAuditAge)), Limit: q.limit(0)}
	workspace := q.str("workspace")
	if err := q.check(); err != nil {
		return err
	}
	if workspace != "" && hutch.ProjectID(workspace) != want.Project {
		return hutch.Errorf(hutch.CodeForbidden, "this key sees its own project, %s, only", want.Project)
	}
	list, err := a.svc.Audit.Audit(r.Context(), want)
	if err != nil {
		return err
	}
	out := api.Audit{Entries: make([]api.AuditEntry, 0, len(list)), Since: milli(want.Since)}
	for _, e := range list {
		out.Entries = append(out.Entries, api.AuditEntry{
			ID: e.ID, TS: milli(e.At), Workspace: e.Project, RequestID: e.RequestID, Method: e.Method,
			Path: e.Route, Status: e.Status, Actor: e.Key, SandboxID: e.Sandbox,
		})
	}
	return writeJSON(w, http.StatusOK, out)
}

// recordAudit puts a call that changed something, or tried to, on record. One without a
// valid key is nobody's: it is in the log, and cannot fill a tenant's audit.
func (a *API) recordAudit(r *http.Request, i *info, status int) {
	if i.key.Project == "" || !i.changes {
		return
	}
	a.svc.Audit.RecordAudit(hutch.AuditEntry{
		At: time.Now(), Project: i.key.Project, Key: i.key.Prefix, RequestID: i.id,
		Method: method(r), Route: i.route, Sandbox: i.sandbox, Status: status,
	})
}
