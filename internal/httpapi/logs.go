package httpapi

import (
	"bufio"
	"errors"
	"net/http"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// sandboxLogs answers with what a sandbox's commands wrote, line by line: as plain text,
// or with follow=1 as events, until the sandbox ends.
func (a *API) sandboxLogs(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.LogQuery{
		Project: project(r), Sandbox: sandboxID(r), Stream: q.str("stream"),
		Tail: int(min(q.num("tail", 0), 1<<31-1)), Follow: q.flag("follow", false),
	}
	if err := q.check(); err != nil {
		return err
	}
	switch want.Stream {
	case "both":
		want.Stream = ""
	case "", hutch.Stdout, hutch.Stderr:
	default:
		return hutch.FieldErrorf("stream", "must be stdout, stderr or both")
	}
	if _, err := a.svc.Sandboxes.Sandbox(r.Context(), want.Project, want.Sandbox); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
		return err
	}
	if want.Follow {
		return a.followLogs(w, r, want)
	}
	var out *bufio.Writer
	begin := func() {
		if out != nil {
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(http.StatusOK)
		out = bufio.NewWriterSize(w, 32<<10)
	}
	err := a.svc.Logs.Logs(r.Context(), want, func(l hutch.LogLine) error {
		begin()
		_, _ = out.WriteString(l.Text) // an error stays in the buffer and comes again
		return clientGone(out.WriteByte('\n'))
	})
	if err != nil {
		return err
	}
	begin()
	return clientGone(out.Flush())
}

func (a *API) followLogs(w http.ResponseWriter, r *http.Request, want hutch.LogQuery) error {
	out := newEventStream(w, a.cfg.Keepalive)
	defer out.close()
	err := a.svc.Logs.Logs(r.Context(), want, func(l hutch.LogLine) error {
		return out.send(api.EventLine, "", api.LogLine{Line: l.Text, Stream: l.Stream, Time: milli(l.At), ExecID: l.Exec})
	})
	if err != nil && !errors.Is(err, errClientGone) {
		err = out.send(api.EventError, "", errorBody(r, err))
	}
	return ignoreGone(err)
}
