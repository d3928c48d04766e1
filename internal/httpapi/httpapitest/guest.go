package httpapitest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hutch.dev/hutch"
)

// Inside is what a Fake's sandboxes have in them: one tree and one set of servers for all
// of them. Its methods are safe for concurrent use.
type Inside struct {
	DiskSize int64 // bytes of files that fit; 0 = any number
	NoSize   bool  // files say that they have 0 bytes, as those of /proc do

	mu      sync.Mutex
	files   map[string]*file
	parts   map[string][]byte // of uploads that are not whole
	servers map[int]func(net.Conn)
	shells  map[string]hutch.Shell
	watches map[*watch]bool
	opened  int // guests that are not done
}

type file struct {
	info hutch.FileInfo
	data []byte
}

type watch struct {
	dir    string
	events chan hutch.FileEvent
}

func newInside() *Inside {
	in := &Inside{
		files: make(map[string]*file), parts: make(map[string][]byte), servers: make(map[int]func(net.Conn)),
		shells: make(map[string]hutch.Shell), watches: make(map[*watch]bool),
	}
	for _, dir := range []string{"/", "/tmp"} {
		in.files[dir] = &file{info: hutch.FileInfo{Name: path.Base(dir), Path: dir, Type: hutch.TypeDirectory, Mode: 0o755, Owner: "root", Group: "root", ModTime: Epoch}}
	}
	return in
}

// Put makes a file, and its parents.
func (in *Inside) Put(name string, data []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.putLocked(name, data, hutch.TypeFile)
}

// Link makes a symbolic link.
func (in *Inside) Link(name, target string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.putLocked(name, nil, hutch.TypeSymlink)
	f.info.LinkTarget, f.info.Size = target, int64(len(target))
	f.info.Target = &hutch.FileTarget{Path: target, Type: hutch.TypeDirectory, Mode: 0o755}
}

// Data is what a file holds; nil if there is none.
func (in *Inside) Data(name string) []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	if f := in.files[name]; f != nil {
		return f.data
	}
	return nil
}

// Listen has serve answer connections to a port.
func (in *Inside) Listen(port int, serve func(net.Conn)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.servers[port] = serve
}

// SetShell makes a shell session known.
func (in *Inside) SetShell(s hutch.Shell) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.shells[s.Name] = s
}

// Opened is how many guests are not done.
func (in *Inside) Opened() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.opened
}

func (in *Inside) putLocked(name string, data []byte, typ hutch.FileType) *file {
	for dir := path.Dir(name); in.files[dir] == nil; dir = path.Dir(dir) {
		in.files[dir] = &file{info: hutch.FileInfo{Name: path.Base(dir), Path: dir, Type: hutch.TypeDirectory, Mode: 0o755, Owner: "root", Group: "root", ModTime: Epoch}}
	}
	f := &file{data: data, info: hutch.FileInfo{
		Name: path.Base(name), Path: name, Type: typ, Size: int64(len(data)), Mode: 0o644, Owner: "root", Group: "root", ModTime: Epoch,
	}}
	if in.NoSize {
		f.info.Size = 0
	}
	op := hutch.OpCreate
	if in.files[name] != nil {
		op = hutch.OpWrite
	}
	in.files[name] = f
	in.tellLocked(op, f.info)
	return f
}

func (in *Inside) tellLocked(op hutch.FileOp, f hutch.FileInfo) {
	for w := range in.watches {
		if rel, ok := strings.CutPrefix(f.Path, strings.TrimSuffix(w.dir, "/")+"/"); ok {
			w.events <- hutch.FileEvent{Op: op, Name: rel}
		}
	}
}

func notThere(name string) error {
	return hutch.Errorf(hutch.CodeNotFound, "there is nothing at %s", name)
}

// StatFile implements hutch.FileReader.
func (in *Inside) StatFile(_ context.Context, ref hutch.FileRef) (hutch.FileInfo, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.files[ref.Path]
	if f == nil {
		return hutch.FileInfo{}, notThere(ref.Path)
	}
	return f.info, nil
}

// ListFiles implements hutch.FileReader. A cursor is the number of entries before it.
func (in *Inside) ListFiles(_ context.Context, q hutch.ListFiles) (hutch.FileList, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	dir := in.files[q.Path]
	switch {
	case dir == nil:
		return hutch.FileList{}, notThere(q.Path)
	case dir.info.Type != hutch.TypeDirectory:
		return hutch.FileList{}, hutch.FieldErrorf("path", "%s is no directory", q.Path)
	}
	var all []hutch.FileInfo
	for _, name := range slices.Sorted(maps.Keys(in.files)) {
		rel, ok := strings.CutPrefix(name, strings.TrimSuffix(q.Path, "/")+"/")
		if ok && rel != "" && strings.Count(rel, "/") < max(1, q.Depth) {
			all = append(all, in.files[name].info)
		}
	}
	from, err := strconv.Atoi("0" + q.Cursor)
	if err != nil || from > len(all) {
		return hutch.FileList{}, hutch.FieldErrorf("cursor", "is not from here")
	}
	if q.Limit == 0 {
		q.Limit = hutch.DefaultListLimit
	}
	to := min(len(all), from+q.Limit)
	out := hutch.FileList{Entries: all[from:to]}
	if to < len(all) {
		out.Next = strconv.Itoa(to)
	}
	return out, nil
}

// OpenFile implements hutch.FileReader.
func (in *Inside) OpenFile(_ context.Context, r hutch.ReadFile) (*hutch.FileContent, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.files[r.Path]
	switch {
	case f == nil:
		return nil, notThere(r.Path)
	case f.info.Type == hutch.TypeDirectory:
		return nil, hutch.FieldErrorf("path", "%s is a directory: list it", r.Path)
	case r.Offset > int64(len(f.data)):
		return nil, hutch.FieldErrorf("offset", "the file has %d bytes", len(f.data))
	}
	data := f.data[r.Offset:]
	if r.Length > 0 {
		data = data[:min(r.Length, int64(len(data)))]
	}
	return &hutch.FileContent{Info: f.info, Body: io.NopCloser(bytes.NewReader(data))}, nil
}

// SearchFiles implements hutch.FileReader. It knows names and plain texts.
func (in *Inside) SearchFiles(_ context.Context, q hutch.SearchFiles, sink func(hutch.FileMatch) error) (hutch.SearchResult, error) {
	in.mu.Lock()
	var found []hutch.FileMatch
	for _, name := range slices.Sorted(maps.Keys(in.files)) {
		f := in.files[name]
		if ok, _ := path.Match(q.Name, f.info.Name); q.Name != "" && !ok || !strings.HasPrefix(name, q.Path) {
			continue
		}
		if q.Text == "" {
			found = append(found, hutch.FileMatch{Path: name, Type: f.info.Type})
			continue
		}
		for i, line := range strings.Split(string(f.data), "\n") {
			if at := strings.Index(line, q.Text); at >= 0 {
				found = append(found, hutch.FileMatch{Path: name, Type: f.info.Type, Line: i + 1, Column: at + 1, Text: line})
			}
		}
	}
	in.mu.Unlock()
	for i, m := range found {
		if i == q.Limit {
			return hutch.SearchResult{Truncated: true}, nil
		}
		if err := sink(m); err != nil {
			return hutch.SearchResult{}, err
		}
	}
	return hutch.SearchResult{}, nil
}

// ReadArchive implements hutch.FileReader.
func (in *Inside) ReadArchive(_ context.Context, r hutch.ReadArchive) (*hutch.FileContent, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.files[r.Path] == nil {
		return nil, notThere(r.Path)
	}
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(in.files)) {
		rel, ok := strings.CutPrefix(name, strings.TrimSuffix(r.Path, "/")+"/")
		f := in.files[name]
		if !ok || f.info.Type != hutch.TypeFile || slices.Contains(r.Exclude, f.info.Name) {
			continue
		}
		_ = out.WriteHeader(&tar.Header{Name: rel, Size: int64(len(f.data)), Mode: int64(f.info.Mode)})
		_, _ = out.Write(f.data)
	}
	_ = out.Close()
	return &hutch.FileContent{Info: in.files[r.Path].info, Body: io.NopCloser(&b)}, nil
}

// WriteFile implements hutch.FileWriter.
func (in *Inside) WriteFile(_ context.Context, w hutch.WriteFile) (hutch.WriteResult, error) {
	in.mu.Lock()
	_, exists := in.files[w.Path]
	part := in.parts[w.Upload]
	in.mu.Unlock()
	switch {
	case w.Excl && exists:
		return hutch.WriteResult{}, hutch.Errorf(hutch.CodeConflict, "%s exists", w.Path)
	case w.Upload != "" && w.Offset > int64(len(part)):
		return hutch.WriteResult{}, hutch.Errorf(hutch.CodeConflict, "only %d bytes of this upload are here", len(part))
	}
	var b bytes.Buffer
	b.Write(part[:min(w.Offset, int64(len(part)))])
	if w.Content != nil {
		n, err := io.Copy(&b, io.LimitReader(w.Content, in.room()))
		if err == nil && n == in.room() {
			err = hutch.ErrDiskFull
		}
		if err != nil {
			return hutch.WriteResult{}, err
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	res := hutch.WriteResult{Offset: int64(b.Len())}
	if w.Upload != "" && !w.Last {
		in.parts[w.Upload] = b.Bytes()
		return res, nil
	}
	delete(in.parts, w.Upload)
	f := in.putLocked(w.Path, b.Bytes(), hutch.TypeFile)
	if w.Mode != nil {
		f.info.Mode = *w.Mode
	}
	if w.Owner != "" {
		f.info.Owner = w.Owner
	}
	if w.Group != "" {
		f.info.Group = w.Group
	}
	f.info.Metadata = w.Metadata
	info := f.info
	res.Info = &info
	return res, nil
}

func (in *Inside) room() int64 {
	if in.DiskSize > 0 {
		return in.DiskSize
	}
	return 1 << 40
}

// MakeDir implements hutch.FileWriter.
func (in *Inside) MakeDir(_ context.Context, m hutch.MakeDir) (hutch.FileInfo, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if f := in.files[m.Path]; f != nil {
		if m.Exists {
			return f.info, nil
		}
		return hutch.FileInfo{}, hutch.Errorf(hutch.CodeConflict, "%s exists", m.Path)
	}
	f := in.putLocked(m.Path, nil, hutch.TypeDirectory)
	f.info.Mode = 0o755
	if m.Mode != nil {
		f.info.Mode = *m.Mode
	}
	return f.info, nil
}

// MoveFile implements hutch.FileWriter.
func (in *Inside) MoveFile(_ context.Context, m hutch.MoveFile) (hutch.FileInfo, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.files[m.From]
	switch {
	case f == nil:
		return hutch.FileInfo{}, notThere(m.From)
	case m.Excl && in.files[m.To] != nil:
		return hutch.FileInfo{}, hutch.Errorf(hutch.CodeConflict, "%s exists", m.To)
	}
	delete(in.files, m.From)
	return in.putLocked(m.To, f.data, f.info.Type).info, nil
}

// RemoveFile implements hutch.FileWriter.
func (in *Inside) RemoveFile(_ context.Context, r hutch.RemoveFile) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.files[r.Path]
	if f == nil {
		if r.Missing {
			return nil
		}
		return notThere(r.Path)
	}
	var below []string
	for name := range in.files {
		if strings.HasPrefix(name, r.Path+"/") {
			below = append(below, name)
		}
	}
	if len(below) > 0 && !r.Recursive {
		return hutch.Errorf(hutch.CodeConflict, "%s is not empty", r.Path)
	}
	for _, name := range append(below, r.Path) {
		delete(in.files, name)
	}
	in.tellLocked(hutch.OpRemove, f.info)
	return nil
}

// WriteArchive implements hutch.FileWriter.
func (in *Inside) WriteArchive(_ context.Context, w hutch.WriteArchive) (hutch.ArchiveResult, error) {
	var out hutch.ArchiveResult
	r := tar.NewReader(w.Content)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, hutch.Wrap(hutch.CodeBadRequest, err, "this is no tar stream")
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return out, err
		}
		in.Put(path.Join(w.Path, h.Name), data)
		out.Files++
		out.Bytes += int64(len(data))
	}
}

// WatchFiles implements hutch.FileWatcher.
func (in *Inside) WatchFiles(ctx context.Context, q hutch.WatchFiles, ready func() error, sink func(hutch.FileEvent) error) error {
	w := &watch{dir: q.Path, events: make(chan hutch.FileEvent, 100)}
	in.mu.Lock()
	if in.files[q.Path] == nil {
		in.mu.Unlock()
		return notThere(q.Path)
	}
	in.watches[w] = true
	in.mu.Unlock()
	defer func() {
		in.mu.Lock()
		delete(in.watches, w)
		in.mu.Unlock()
	}()
	if err := ready(); err != nil {
		return err
	}
	for {
		select {
		case ev := <-w.events:
			if err := sink(ev); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pipe is a connection to a server inside.
type pipe struct{ net.Conn }

// CloseWrite implements hutch.PortConn.
func (p pipe) CloseWrite() error {
	if c, ok := p.Conn.(*net.TCPConn); ok {
		return c.CloseWrite()
	}
	return nil
}

// DialPort implements hutch.Ports.
func (in *Inside) DialPort(_ context.Context, port int) (hutch.PortConn, error) {
	in.mu.Lock()
	serve := in.servers[port]
	in.mu.Unlock()
	if serve == nil {
		return nil, hutch.Errorf(hutch.CodePortClosed, "nothing listens on port %d", port)
	}
	mine, theirs := net.Pipe()
	go serve(theirs)
	return pipe{mine}, nil
}

// Listeners implements hutch.Ports.
func (in *Inside) Listeners(context.Context) ([]hutch.Listener, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	var out []hutch.Listener
	for _, port := range slices.Sorted(maps.Keys(in.servers)) {
		out = append(out, hutch.Listener{Port: port, Address: "0.0.0.0", PID: 7, Command: "server"})
	}
	return out, nil
}

// DiskUsage implements hutch.Ports.
func (in *Inside) DiskUsage(context.Context) (hutch.DiskUsage, error) {
	return hutch.DiskUsage{Used: 1, Total: 2}, nil
}

// ListShells implements hutch.Shells.
func (in *Inside) ListShells(context.Context) ([]hutch.Shell, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.SortedFunc(maps.Values(in.shells), func(a, b hutch.Shell) int { return strings.Compare(a.Name, b.Name) }), nil
}

// CloseShell implements hutch.Shells.
func (in *Inside) CloseShell(_ context.Context, name string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, ok := in.shells[name]; !ok {
		return hutch.Errorf(hutch.CodeNotFound, "there is no shell session %q", name)
	}
	delete(in.shells, name)
	return nil
}

// Guest implements httpapi.Guests.
func (f *Fake) Guest(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Guest, func(), error) {
	if err := f.called("Guest"); err != nil {
		return nil, nil, err
	}
	f.mu.Lock()
	sb, err := f.liveLocked(p, sid)
	paused := err == nil && sb.State != hutch.StateRunning
	f.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	if paused {
		return nil, nil, hutch.Errorf(hutch.CodeInvalidState, "sandbox %s is paused: resume it first", sid)
	}
	f.Inside.mu.Lock()
	f.Inside.opened++
	f.Inside.mu.Unlock()
	return f.Inside, sync.OnceFunc(func() {
		f.Inside.mu.Lock()
		defer f.Inside.mu.Unlock()
		f.Inside.opened--
	}), nil
}

var _ hutch.Guest = (*Inside)(nil)

// UpdateAccess implements httpapi.Settings.
func (f *Fake) UpdateAccess(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID, fn func(*hutch.Access) error) (hutch.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	acc := sb.Access
	if err := fn(&acc); err != nil {
		return hutch.Sandbox{}, err
	}
	sb.Access = acc
	return *sb, nil
}

// UpdateMetadata implements httpapi.Settings.
func (f *Fake) UpdateMetadata(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID, set map[string]string) (hutch.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	meta := maps.Clone(sb.Metadata)
	if meta == nil {
		meta = make(map[string]string)
	}
	maps.Copy(meta, set)
	sb.Metadata = meta
	return *sb, nil
}

// Usage implements httpapi.Meter.
func (f *Fake) Usage(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Sample, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sample{}, err
	}
	return hutch.Sample{At: sb.StartedAt.Add(time.Minute), CPUs: 2, CPUPercent: 12.5, Memory: 100 << 20, MemoryMax: 2 << 30, Disk: 5 << 20, DiskMax: 10 << 30}, nil
}

// SetSamples are what Samples returns of every sandbox.
func (f *Fake) SetSamples(s []hutch.Sample) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.samples = s
}

// Samples implements httpapi.Meter.
func (f *Fake) Samples(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID, from, to time.Time) ([]hutch.Sample, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.liveLocked(p, sid); err != nil {
		return nil, err
	}
	var out []hutch.Sample
	for _, s := range f.samples {
		if !s.At.Before(from) && !s.At.After(to) {
			out = append(out, s)
		}
	}
	return out, nil
}

// BootStats implements httpapi.Meter.
func (f *Fake) BootStats(context.Context, hutch.ProjectID) ([]hutch.BootStat, error) {
	return []hutch.BootStat{{Template: "base", Mode: "cold", Count: 3, P50: 30 * time.Millisecond, P95: 40 * time.Millisecond, P99: 41 * time.Millisecond, Max: 41500 * time.Microsecond}}, nil
}
