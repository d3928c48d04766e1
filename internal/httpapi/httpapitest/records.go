package httpapitest

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"hutch.dev/hutch"
)

// Logs implements httpapi.Logs: the output of a sandbox's commands that have ended, in
// the order of their starts. It does not follow.
func (f *Fake) Logs(_ context.Context, q hutch.LogQuery, sink func(hutch.LogLine) error) error {
	f.mu.Lock()
	var lines []hutch.LogLine
	for _, xid := range f.execOrder {
		x := f.execs[xid].record()
		if x.Sandbox != q.Sandbox || x.Project != q.Project || x.Result == nil {
			continue
		}
		for stream, out := range map[string]hutch.Output{hutch.Stdout: x.Result.Stdout, hutch.Stderr: x.Result.Stderr} {
			if q.Stream != "" && q.Stream != stream {
				continue
			}
			for line := range strings.Lines(string(out.Head)) {
				lines = append(lines, hutch.LogLine{At: x.CreatedAt, Exec: x.ID, Stream: stream, Text: strings.TrimSuffix(line, "\n")})
			}
		}
	}
	f.mu.Unlock()
	if q.Tail > 0 && len(lines) > q.Tail {
		lines = lines[len(lines)-q.Tail:]
	}
	for _, l := range lines {
		if err := sink(l); err != nil {
			return err
		}
	}
	return nil
}

// build is a build and its log.
type build struct {
	hutch.Build
	lines   []string
	changed chan struct{} // closed and replaced at every change
}

// StartBuild implements httpapi.Builds: the build waits until EndBuild.
func (f *Fake) StartBuild(_ context.Context, req hutch.BuildRequest) (hutch.Build, error) {
	if err := f.called("StartBuild"); err != nil {
		return hutch.Build{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.builds {
		if b.ID == req.ID {
			return b.Build, nil
		}
	}
	if req.ID == "" {
		req.ID = uuid.NewString()
	}
	b := &build{changed: make(chan struct{}), Build: hutch.Build{
		ID: req.ID, Project: req.Project, Template: req.Name, Source: "image " + req.ImageRef, Status: hutch.BuildQueued, StartedAt: f.Now(),
	}}
	f.builds = append(f.builds, b)
	f.Requested = append(f.Requested, req)
	return b.Build, nil
}

// EndBuild has a build write lines and end; with a sentence it fails.
func (f *Fake) EndBuild(id, sentence string, lines ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.builds {
		if b.ID != id {
			continue
		}
		b.lines = append(b.lines, lines...)
		b.Status, b.SizeBytes, b.EndedAt = hutch.BuildDone, 5<<20+1, f.Now()
		if sentence != "" {
			b.Status, b.Error = hutch.BuildFailed, sentence
		}
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

func (f *Fake) buildLocked(p hutch.ProjectID, id string) (*build, error) {
	for _, b := range f.builds {
		if b.ID == id && b.Project == p {
			return b, nil
		}
	}
	return nil, hutch.Errorf(hutch.CodeNotFound, "there is no build %q", id)
}

// Build implements httpapi.Builds.
func (f *Fake) Build(_ context.Context, p hutch.ProjectID, id string) (hutch.Build, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.buildLocked(p, id)
	if err != nil {
		return hutch.Build{}, err
	}
	return b.Build, nil
}

// ListBuilds implements httpapi.Builds.
func (f *Fake) ListBuilds(_ context.Context, p hutch.ProjectID) ([]hutch.Build, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []hutch.Build
	for _, b := range slices.Backward(f.builds) {
		if b.Project == p {
			out = append(out, b.Build)
		}
	}
	return out, nil
}

// FollowBuild implements httpapi.Builds.
func (f *Fake) FollowBuild(ctx context.Context, p hutch.ProjectID, id string, from int, follow bool, sink func(hutch.LogLine) error) error {
	for {
		f.mu.Lock()
		b, err := f.buildLocked(p, id)
		if err != nil {
			f.mu.Unlock()
			return err
		}
		lines, ended, changed := b.lines, !b.EndedAt.IsZero(), b.changed
		f.mu.Unlock()
		for ; from < len(lines); from++ {
			if err := sink(hutch.LogLine{At: Epoch, Text: lines[from]}); err != nil {
				return err
			}
		}
		if ended || !follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// DeleteTemplate implements httpapi.Builds: "base" is not there any more afterwards.
func (f *Fake) DeleteTemplate(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name != "base" || f.noTemplate {
		return hutch.Errorf(hutch.CodeNotFound, "there is no template %q", name)
	}
	f.noTemplate = true
	return nil
}

// Audit implements httpapi.AuditLog.
func (f *Fake) Audit(_ context.Context, q hutch.AuditQuery) ([]hutch.AuditEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []hutch.AuditEntry
	for _, e := range slices.Backward(f.audit) {
		if e.Project == q.Project && !e.At.Before(q.Since) && (q.Limit == 0 || len(out) < q.Limit) {
			out = append(out, e)
		}
	}
	return out, nil
}

// RecordAudit implements httpapi.AuditLog.
func (f *Fake) RecordAudit(e hutch.AuditEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.ID = int64(len(f.audit) + 1)
	f.audit = append(f.audit, e)
}
