package e2bapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// world is all of the services in memory, with files in a real directory and commands that
// the test plays.
type world struct {
	root string // of every sandbox's files

	mu        sync.Mutex
	sandboxes map[hutch.SandboxID]*hutch.Sandbox
	order     []hutch.SandboxID
	execs     map[hutch.ExecID]*command
	nextPID   int
	audit     []hutch.AuditEntry
	samples   []hutch.Sample
	lines     []hutch.LogLine
	templates []hutch.Template
	deleted   []string
	given     []string
	ports     map[int]bool // that listen
	requests  []string     // "method route status"
	played    func(*command)
	onFollow  func(hutch.FollowOptions) // before a command's output is looked at
	createErr error
	creating  func()                            // before a create does anything
	reading   func(io.ReadCloser) io.ReadCloser // the content of a file that is opened
	writing   func() error                      // once a file's content has begun to come
	watches   chan *fakeWatch
	recovered bool
	queries   []hutch.SandboxQuery
}

const (
	testProject = hutch.ProjectID("default")
	adminKey    = "e2b_admin"
	readKey     = "e2b_read"
	runKey      = "e2b_run"
	otherKey    = "e2b_other"
)

func newWorld(root string) *world {
	return &world{
		root: root, sandboxes: map[hutch.SandboxID]*hutch.Sandbox{}, execs: map[hutch.ExecID]*command{}, nextPID: 42, recovered: true,
		ports: map[int]bool{}, watches: make(chan *fakeWatch, 8), played: func(c *command) { c.exit(0) },
		templates: []hutch.Template{
			{Name: "base", BuildID: "6a1c4b8e-0000-4000-8000-000000000001", Aliases: []string{"default"}, Resources: hutch.Resources{MilliCPU: 1000, MemoryMB: 512, DiskMB: 2048}},
			{Name: "ns/my", BuildID: "6a1c4b8e-0000-4000-8000-000000000002"},
		},
	}
}

// command is a process that a test plays.
type command struct {
	w     *world
	x     hutch.Exec
	out   []hutch.OutputEvent // all of it, in the order in which it was written
	more  chan struct{}       // closed and replaced when there is more
	done  chan struct{}
	once  sync.Once
	size  hutch.TerminalSize
	stdin bytes.Buffer
	ended bool // its input
	sent  []string
}

func (c *command) write(stream, text string) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.out = append(c.out, hutch.OutputEvent{Stream: stream, Offset: c.written(stream), Data: []byte(text)})
	close(c.more)
	c.more = make(chan struct{})
}

// written counts the bytes of a stream. w.mu is held.
func (c *command) written(stream string) (n int64) {
	for _, ev := range c.out {
		if ev.Stream == stream {
			n += int64(len(ev.Data))
		}
	}
	return n
}

func (c *command) finish(r hutch.ExecResult) {
	c.once.Do(func() {
		r.EndedAt = time.Now()
		c.w.mu.Lock()
		c.x.Result = &r
		c.w.mu.Unlock()
		close(c.done)
	})
}

func (c *command) exit(code int) { c.finish(hutch.ExecResult{End: hutch.ExecExit, ExitCode: code}) }

func (w *world) Verify(_ context.Context, presented string) (hutch.APIKey, error) {
	switch presented {
	case adminKey:
		return hutch.APIKey{Prefix: "aaaaaaaa", Hash: []byte("hash of the admin's"), Project: testProject, Scope: hutch.ScopeAdmin}, nil
	case readKey:
		return hutch.APIKey{Prefix: "bbbbbbbb", Hash: []byte("hash of the reader's"), Project: testProject, Scope: hutch.ScopeRead}, nil
	case runKey:
		return hutch.APIKey{Prefix: "dddddddd", Hash: []byte("hash of the runner's"), Project: testProject, Scope: hutch.ScopeRun}, nil
	case otherKey:
		return hutch.APIKey{Prefix: "cccccccc", Hash: []byte("hash of another's"), Project: "other", Scope: hutch.ScopeAdmin}, nil
	}
	return hutch.APIKey{}, hutch.Errorf(hutch.CodeUnauthenticated, "the API key is not known here")
}

func (w *world) Token(id hutch.SandboxID, use string) string { return use + "-token-of-" + string(id) }

func (w *world) Valid(id hutch.SandboxID, use, presented string) bool {
	return presented == w.Token(id, use)
}

func (w *world) RecordAudit(e hutch.AuditEntry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.audit = append(w.audit, e)
}

func (w *world) HTTPRequest(route, method string, status int, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, fmt.Sprintf("%s %s %d", method, route, status))
}

func (w *world) CreateSandbox(ctx context.Context, req hutch.CreateSandbox) (hutch.Sandbox, error) {
	if w.creating != nil {
		w.creating()
	}
	if ctx.Err() != nil {
		return hutch.Sandbox{}, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.createErr != nil {
		return hutch.Sandbox{}, w.createErr
	}
	if req.ID == "" {
		req.ID = hutch.SandboxID(id.NewSandbox())
	}
	if sb, ok := w.sandboxes[req.ID]; ok {
		return *sb, nil
	}
	now := time.Now().UTC()
	sb := &hutch.Sandbox{
		ID: req.ID, Project: req.Project, Template: req.Template, State: hutch.StateRunning, Env: req.Env, Metadata: req.Metadata,
		Access: req.Access, CreatedAt: now, StartedAt: now, TTL: *req.TTL, ExpiresAt: now.Add(*req.TTL),
		Resources: hutch.Resources{MilliCPU: 1500, MemoryMB: 512, DiskMB: 2048},
	}
	w.sandboxes[sb.ID] = sb
	w.order = append(w.order, sb.ID)
	return *sb, nil
}

func (w *world) SandboxByID(_ context.Context, id hutch.SandboxID) (hutch.Sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sb, ok := w.sandboxes[id]
	if !ok {
		return hutch.Sandbox{}, hutch.Errorf(hutch.CodeNotFound, "there is no sandbox %q", id)
	}
	if sb.State == hutch.StateDead {
		return *sb, hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s has ended (%s)", id, sb.EndReason)
	}
	return *sb, nil
}

// of is SandboxByID for one project.
func (w *world) of(p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb, err := w.SandboxByID(context.Background(), id)
	if err == nil && sb.Project != p {
		return hutch.Sandbox{}, hutch.Errorf(hutch.CodeNotFound, "there is no sandbox %q", id)
	}
	return sb, err
}

func (w *world) ListSandboxes(_ context.Context, q hutch.SandboxQuery) ([]hutch.Sandbox, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queries = append(w.queries, q)
	order := slices.Clone(w.order)
	if !q.Oldest {
		slices.Reverse(order)
	}
	var out []hutch.Sandbox
	for _, id := range order {
		sb := *w.sandboxes[id]
		if q.Cursor != "" {
			if q.Cursor == string(id) {
				q.Cursor = ""
			}
			continue
		}
		if q.Project != "" && sb.Project != q.Project || !slices.Contains(q.States, sb.State) || q.Template != "" && q.Template != sb.Template || sb.CreatedAt.Before(q.Since) {
			continue
		}
		match := true
		for k, v := range q.Metadata {
			match = match && sb.Metadata[k] == v
		}
		if !match {
			continue
		}
		if q.Limit > 0 && len(out) == q.Limit {
			return out, string(out[len(out)-1].ID), nil
		}
		out = append(out, sb)
	}
	return out, "", nil
}

func (w *world) KillSandbox(_ context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	if sb, err := w.of(p, id); err != nil {
		return sb, err
	}
	w.mu.Lock()
	w.sandboxes[id].End(hutch.EndKilled, "")
	sb := *w.sandboxes[id]
	var over []*command
	for _, c := range w.execs {
		if c.x.Sandbox == id {
			over = append(over, c)
		}
	}
	w.mu.Unlock()
	for _, c := range over {
		c.finish(hutch.ExecResult{End: hutch.ExecSandboxGone, ExitCode: 137})
	}
	return sb, nil
}

func (w *world) ExtendTo(_ context.Context, p hutch.ProjectID, id hutch.SandboxID, t time.Time, onlyLater bool) (hutch.Sandbox, error) {
	if sb, err := w.of(p, id); err != nil {
		return sb, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	sb := w.sandboxes[id]
	if !onlyLater || t.After(sb.ExpiresAt) {
		sb.ExpiresAt = t
	}
	return *sb, nil
}

func (w *world) ResumeSandbox(_ context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	if sb, err := w.of(p, id); err != nil {
		return sb, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sandboxes[id].State = hutch.StateRunning
	return *w.sandboxes[id], nil
}

func (w *world) StartExec(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID, req hutch.ExecRequest) (hutch.Exec, error) {
	if _, err := w.of(p, sid); err != nil {
		return hutch.Exec{}, err
	}
	if req.Spec.User == "nobody-here" {
		return hutch.Exec{}, hutch.FieldErrorf("user", "there is no user %q in this sandbox", req.Spec.User)
	}
	if req.Spec.Cwd == "/missing" {
		return hutch.Exec{}, hutch.FieldErrorf("cwd", "there is no directory %q in this sandbox", req.Spec.Cwd)
	}
	w.mu.Lock()
	w.nextPID++
	c := &command{w: w, more: make(chan struct{}), done: make(chan struct{}), x: hutch.Exec{
		ID: hutch.ExecID(id.NewExec()), Sandbox: sid, Project: p, Spec: req.Spec, PID: w.nextPID, CreatedAt: time.Now(),
	}}
	if strings.HasPrefix(req.Spec.Argv[0], "/no/such") {
		c.x.PID = 0
		c.out = []hutch.OutputEvent{{Stream: hutch.Stderr, Data: []byte(req.Spec.Argv[0] + ": not found\n")}}
	}
	w.execs[c.x.ID] = c
	played, x := w.played, c.x
	w.mu.Unlock()
	go played(c)
	return x, nil
}

func (w *world) command(p hutch.ProjectID, id hutch.ExecID) (*command, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.execs[id]
	if !ok || c.x.Project != p {
		return nil, hutch.Errorf(hutch.CodeNotFound, "there is no command %q", id)
	}
	return c, nil
}

func (w *world) record(c *command) hutch.Exec {
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.x
}

func (w *world) FollowExec(ctx context.Context, p hutch.ProjectID, _ hutch.SandboxID, exec hutch.ExecID, o hutch.FollowOptions, sink func(hutch.OutputEvent) error) (hutch.Exec, error) {
	c, err := w.command(p, exec)
	if err != nil {
		return hutch.Exec{}, err
	}
	w.mu.Lock()
	slow := w.onFollow
	w.mu.Unlock()
	if slow != nil {
		slow(o)
	}
	w.mu.Lock()
	at := map[string]int64{hutch.Stdout: o.Stdout, hutch.Stderr: o.Stderr}
	if o.Live {
		for name := range at {
			at[name] = max(0, c.written(name)-o.Last)
		}
	}
	w.mu.Unlock()
	for next := 0; ; {
		w.mu.Lock()
		out, more, over := c.out[next:], c.more, c.x.Result != nil
		w.mu.Unlock()
		for _, ev := range out {
			next++
			if skip := at[ev.Stream] - ev.Offset; skip >= int64(len(ev.Data)) {
				continue
			} else if skip > 0 {
				ev.Offset, ev.Data = ev.Offset+skip, ev.Data[skip:]
			}
			if err := sink(ev); err != nil {
				return w.record(c), err
			}
		}
		if over || o.NoWait {
			return w.record(c), nil
		}
		select {
		case <-more:
		case <-c.done:
		case <-ctx.Done():
			return w.record(c), ctx.Err()
		}
	}
}

func (w *world) Exec(_ context.Context, p hutch.ProjectID, exec hutch.ExecID) (hutch.Exec, error) {
	c, err := w.command(p, exec)
	if err != nil {
		return hutch.Exec{}, err
	}
	return w.record(c), nil
}

func (w *world) ListExecs(_ context.Context, q hutch.ExecQuery) ([]hutch.Exec, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []hutch.Exec
	for _, c := range w.execs {
		if c.x.Sandbox == q.Sandbox && (!q.Running || c.x.Result == nil) {
			out = append(out, c.x)
		}
	}
	slices.SortFunc(out, func(a, b hutch.Exec) int { return b.PID - a.PID })
	return out, "", nil
}

func (w *world) WriteStdin(_ context.Context, p hutch.ProjectID, _ hutch.SandboxID, exec hutch.ExecID, ch hutch.StdinChunk) (int64, error) {
	c, err := w.command(p, exec)
	if err != nil {
		return 0, err
	}
	b, err := io.ReadAll(ch.Data)
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.ended {
		return 0, hutch.ErrInvalidState
	}
	c.stdin.Write(b)
	c.ended = ch.End
	if !ch.Append {
		return 0, errors.New("without Append")
	}
	return int64(c.stdin.Len()), err
}

func (w *world) CancelExec(_ context.Context, p hutch.ProjectID, _ hutch.SandboxID, exec hutch.ExecID, grace *time.Duration) (hutch.Exec, error) {
	c, err := w.command(p, exec)
	if err != nil {
		return hutch.Exec{}, err
	}
	c.finish(hutch.ExecResult{End: hutch.ExecCancelled, ExitCode: 137, Signal: "KILL", Detail: fmt.Sprint(*grace)})
	return w.record(c), nil
}

func (w *world) SignalExec(_ context.Context, p hutch.ProjectID, _ hutch.SandboxID, exec hutch.ExecID, signal string, tree bool) error {
	c, err := w.command(p, exec)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c.sent = append(c.sent, fmt.Sprintf("%s %v", signal, tree))
	return nil
}

func (w *world) ResizeExec(_ context.Context, p hutch.ProjectID, _ hutch.SandboxID, exec hutch.ExecID, size hutch.TerminalSize) error {
	c, err := w.command(p, exec)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c.size = size
	return nil
}

func (w *world) Guest(_ context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Guest, func(), error) {
	sb, err := w.of(p, id)
	if err != nil {
		return nil, func() {}, err
	}
	if sb.State != hutch.StateRunning {
		return nil, func() {}, hutch.ErrInvalidState
	}
	return &fakeGuest{w: w}, func() {}, nil
}

func (w *world) ListTemplates(context.Context) ([]hutch.Template, error) { return w.templates, nil }

func (w *world) Template(_ context.Context, name string) (hutch.Template, error) {
	for _, t := range w.templates {
		if t.Name == name || slices.Contains(t.Aliases, name) {
			return t, nil
		}
	}
	return hutch.Template{}, hutch.Errorf(hutch.CodeNotFound, "there is no template %q", name)
}

func (w *world) DeleteTemplate(_ context.Context, name string) error {
	w.deleted = append(w.deleted, name)
	return nil
}

func (w *world) Samples(_ context.Context, _ hutch.ProjectID, _ hutch.SandboxID, from, to time.Time) ([]hutch.Sample, error) {
	var out []hutch.Sample
	for _, s := range w.samples {
		if !s.At.Before(from) && (to.IsZero() || !s.At.After(to)) {
			out = append(out, s)
		}
	}
	return out, nil
}

func (w *world) Usage(_ context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sample, error) {
	if _, err := w.of(p, id); err != nil {
		return hutch.Sample{}, err
	}
	return hutch.Sample{At: time.Unix(1700000000, 0), CPUs: 2, CPUPercent: 100, Memory: 1 << 20, MemoryMax: 512 << 20, Disk: 3, DiskMax: 4}, nil
}

func (w *world) Logs(_ context.Context, _ hutch.LogQuery, sink func(hutch.LogLine) error) error {
	for _, l := range w.lines {
		if err := sink(l); err != nil {
			return err
		}
	}
	return nil
}

// gave records in whose name something was made, and to whom it was given.
func (w *world) gave(what, by, owner, group string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given = append(w.given, fmt.Sprintf("%s by %s for %s:%s", what, by, owner, group))
}

// fakeGuest has its files below the world's root; users are not looked at, except that one
// does not exist.
type fakeGuest struct {
	hutch.Guest // what is not here is not called
	w           *world
}

type fakeWatch struct {
	q    hutch.WatchFiles
	sink func(hutch.FileEvent) error
	end  chan error
}

// resolve returns a path as the guest shows it, and where it is.
func (g *fakeGuest) resolve(ref hutch.FileRef) (shown, real string, err error) {
	if ref.User == "nobody-here" {
		return "", "", hutch.FieldErrorf("user", "there is no user %q in this sandbox", ref.User)
	}
	p := ref.Path
	switch {
	case p == "~":
		p = "/home/user"
	case strings.HasPrefix(p, "~/"):
		p = "/home/user/" + p[2:]
	case !path.IsAbs(p):
		p = "/home/user/" + p
	}
	p = path.Clean(p)
	if strings.HasPrefix(p, "/roots") && ref.User != "root" {
		return "", "", hutch.Errorf(hutch.CodeForbidden, "user %s may not do that", ref.User)
	}
	return p, filepath.Join(g.w.root, p), nil
}

func (g *fakeGuest) info(ref hutch.FileRef) (hutch.FileInfo, string, error) {
	shown, real, err := g.resolve(ref)
	if err != nil {
		return hutch.FileInfo{}, "", err
	}
	st, err := os.Lstat(real)
	if err != nil {
		return hutch.FileInfo{}, "", hutch.Errorf(hutch.CodeNotFound, "there is no %q", shown)
	}
	f := hutch.FileInfo{Name: path.Base(shown), Path: shown, Type: hutch.TypeFile, Size: st.Size(), Mode: uint32(st.Mode().Perm()), Owner: "user", Group: "user", UID: 1000, GID: 1000, ModTime: st.ModTime()}
	if st.IsDir() {
		f.Type = hutch.TypeDirectory
	}
	if b, err := os.ReadFile(real + ".meta"); err == nil && len(b) > 0 {
		f.Metadata = map[string]string{}
		for line := range strings.SplitSeq(string(b), "\n") {
			k, v, _ := strings.Cut(line, "=")
			f.Metadata[k] = v
		}
	}
	return f, real, nil
}

func (g *fakeGuest) StatFile(_ context.Context, ref hutch.FileRef) (hutch.FileInfo, error) {
	f, _, err := g.info(ref)
	return f, err
}

func (g *fakeGuest) ListFiles(_ context.Context, q hutch.ListFiles) (hutch.FileList, error) {
	f, real, err := g.info(q.FileRef)
	if err != nil {
		return hutch.FileList{}, err
	}
	if f.Type != hutch.TypeDirectory {
		return hutch.FileList{}, hutch.Errorf(hutch.CodeBadRequest, "%q is not a directory", f.Path)
	}
	var out hutch.FileList
	err = filepath.WalkDir(real, func(p string, _ os.DirEntry, err error) error {
		rel, _ := filepath.Rel(real, p)
		if err != nil || rel == "." || strings.Count(rel, "/") >= q.Depth {
			return err
		}
		e, _, err := g.info(hutch.FileRef{Path: path.Join(f.Path, rel), User: q.User})
		out.Entries = append(out.Entries, e)
		return err
	})
	const page = 2 // so that reading on is tested
	start := 0
	if q.Cursor != "" {
		_, _ = fmt.Sscan(q.Cursor, &start)
	}
	end := min(start+page, len(out.Entries))
	if end < len(out.Entries) {
		out.Next = fmt.Sprint(end)
	}
	out.Entries = out.Entries[start:end]
	return out, err
}

func (g *fakeGuest) OpenFile(_ context.Context, r hutch.ReadFile) (*hutch.FileContent, error) {
	f, real, err := g.info(r.FileRef)
	if err != nil {
		return nil, err
	}
	if f.Type == hutch.TypeDirectory {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "%q is a directory", f.Path)
	}
	fd, err := os.Open(real)
	if err != nil {
		return nil, err
	}
	if _, err := fd.Seek(r.Offset, io.SeekStart); err != nil {
		return nil, err
	}
	body := io.ReadCloser(fd)
	if g.w.reading != nil {
		body = g.w.reading(body)
	}
	return &hutch.FileContent{Info: f, Body: body}, nil
}

func (g *fakeGuest) WriteFile(_ context.Context, wr hutch.WriteFile) (hutch.WriteResult, error) {
	shown, real, err := g.resolve(wr.FileRef)
	if err != nil { // having read a part of the body, as a transport does
		_, _ = io.CopyN(io.Discard, wr.Content, 5)
		return hutch.WriteResult{}, err
	}
	g.w.gave(shown, wr.User, wr.Owner, wr.Group)
	if strings.HasPrefix(shown, "/full/") {
		return hutch.WriteResult{}, hutch.Errorf(hutch.CodeDiskFull, "the disk is full")
	}
	if g.w.writing != nil {
		_, _ = io.ReadFull(wr.Content, make([]byte, 1))
		if err := g.w.writing(); err != nil {
			return hutch.WriteResult{}, err
		}
	}
	b, err := io.ReadAll(wr.Content)
	if err != nil {
		return hutch.WriteResult{}, hutch.Wrap(hutch.CodeCancelled, err, "the content ended early")
	}
	if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
		return hutch.WriteResult{}, err
	}
	if st, err := os.Stat(real); err == nil && st.IsDir() {
		return hutch.WriteResult{}, hutch.Errorf(hutch.CodeBadRequest, "%q is a directory", shown)
	}
	var meta []string
	for _, k := range slices.Sorted(maps.Keys(wr.Metadata)) {
		meta = append(meta, k+"="+wr.Metadata[k])
	}
	if err := errors.Join(os.WriteFile(real, b, 0o644), os.WriteFile(real+".meta", []byte(strings.Join(meta, "\n")), 0o644)); err != nil {
		return hutch.WriteResult{}, err
	}
	f, _, err := g.info(wr.FileRef)
	return hutch.WriteResult{Info: &f, Offset: int64(len(b))}, err
}

func (g *fakeGuest) MakeDir(_ context.Context, m hutch.MakeDir) (hutch.FileInfo, error) {
	shown, real, err := g.resolve(m.FileRef)
	if err != nil {
		return hutch.FileInfo{}, err
	}
	if _, err := os.Stat(real); err == nil && m.Exists {
		f, _, err := g.info(m.FileRef)
		return f, err
	} else if err == nil {
		return hutch.FileInfo{}, hutch.Errorf(hutch.CodeConflict, "%q exists", shown)
	}
	g.w.gave(shown, m.User, m.Owner, m.Group)
	if err := os.MkdirAll(real, 0o755); err != nil {
		return hutch.FileInfo{}, err
	}
	f, _, err := g.info(m.FileRef)
	return f, err
}

func (g *fakeGuest) MoveFile(_ context.Context, m hutch.MoveFile) (hutch.FileInfo, error) {
	_, from, err := g.info(hutch.FileRef{Path: m.From, User: m.User})
	g.w.gave(m.From+" → "+m.To, m.User, "", "")
	if err != nil {
		return hutch.FileInfo{}, err
	}
	to := hutch.FileRef{Path: m.To, User: m.User}
	_, real, err := g.resolve(to)
	if err != nil {
		return hutch.FileInfo{}, err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(real), 0o755), os.Rename(from, real)); err != nil {
		return hutch.FileInfo{}, err
	}
	f, _, err := g.info(to)
	return f, err
}

func (g *fakeGuest) RemoveFile(_ context.Context, r hutch.RemoveFile) error {
	_, real, err := g.resolve(r.FileRef)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(real); err != nil && !r.Missing {
		return hutch.ErrNotFound
	}
	return os.RemoveAll(real)
}

func (g *fakeGuest) WatchFiles(ctx context.Context, q hutch.WatchFiles, ready func() error, sink func(hutch.FileEvent) error) error {
	if _, _, err := g.info(q.FileRef); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	fw := &fakeWatch{q: q, sink: sink, end: make(chan error, 1)}
	g.w.watches <- fw
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-fw.end:
		return err
	}
}

type pipeConn struct{ net.Conn }

func (pipeConn) CloseWrite() error { return nil }

func (g *fakeGuest) DialPort(_ context.Context, port int) (hutch.PortConn, error) {
	if !g.w.ports[port] {
		return nil, hutch.ErrPortClosed
	}
	a, b := net.Pipe()
	_ = b.Close()
	return pipeConn{a}, nil
}
