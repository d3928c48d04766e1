package guestclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

func goodInfo() hutch.FileInfo {
	return hutch.FileInfo{
		Name: "f", Path: "/a/f", Type: hutch.TypeFile, Size: 5, Mode: 0o644, UID: 1, GID: 2, Owner: "worker", Group: "worker",
		ModTime: time.Unix(1000, 5).UTC(), Metadata: map[string]string{"k": "v"},
	}
}

// TestFileDescriptions: what a guest says of a file is taken if it can be true, and nothing
// else is.
func TestFileDescriptions(t *testing.T) {
	many := map[string]string{}
	for i := range 5000 {
		many[strings.Repeat("k", 3)+string(rune('a'+i%26))+string(rune('0'+i/26%10))+string(rune('0'+i/260))] = ""
	}
	for name, tt := range map[string]struct {
		change func(*hutch.FileInfo)
		ok     bool
	}{
		"good":             {func(*hutch.FileInfo) {}, true},
		"strange name":     {func(i *hutch.FileInfo) { i.Path, i.Name = "/a/\n\" \x1b[2J", "\n\" \x1b[2J" }, true},
		"root":             {func(i *hutch.FileInfo) { i.Path, i.Name = "/", "/" }, true},
		"raw":              {func(i *hutch.FileInfo) { i.Path, i.Name, i.RawPath = "/a/\uFFFD", "\uFFFD", []byte("/a/\xff") }, true},
		"link":             {func(i *hutch.FileInfo) { i.Type, i.LinkTarget = hutch.TypeSymlink, "../x" }, true},
		"no path":          {func(i *hutch.FileInfo) { i.Path = "" }, false},
		"relative":         {func(i *hutch.FileInfo) { i.Path = "f" }, false},
		"zero byte":        {func(i *hutch.FileInfo) { i.Path, i.Name = "/\x00", "\x00" }, false},
		"long":             {func(i *hutch.FileInfo) { i.Path = "/" + strings.Repeat("x/", 8000) + "f" }, false},
		"another name":     {func(i *hutch.FileInfo) { i.Name = "../../etc/passwd" }, false},
		"raw of another":   {func(i *hutch.FileInfo) { i.RawPath = []byte("/etc/\xff") }, false},
		"raw without need": {func(i *hutch.FileInfo) { i.RawPath = []byte("/a/f") }, false},
		"type":             {func(i *hutch.FileInfo) { i.Type = "door" }, false},
		"size":             {func(i *hutch.FileInfo) { i.Size = -1 }, false},
		"mode":             {func(i *hutch.FileInfo) { i.Mode = 0o100644 }, false},
		"link of a file":   {func(i *hutch.FileInfo) { i.LinkTarget = "x" }, false},
		"long link":        {func(i *hutch.FileInfo) { i.Type, i.LinkTarget = hutch.TypeSymlink, strings.Repeat("x", 13_000) }, false},
		"link to a link": {func(i *hutch.FileInfo) {
			i.Type, i.Target = hutch.TypeSymlink, &hutch.FileTarget{Path: "/x", Type: hutch.TypeSymlink}
		}, false},
		"relative target": {func(i *hutch.FileInfo) {
			i.Type, i.Target = hutch.TypeSymlink, &hutch.FileTarget{Path: "x", Type: hutch.TypeFile}
		}, false},
		"empty key":     {func(i *hutch.FileInfo) { i.Metadata = map[string]string{"": ""} }, false},
		"long key":      {func(i *hutch.FileInfo) { i.Metadata = map[string]string{strings.Repeat("k", 247): ""} }, false},
		"much metadata": {func(i *hutch.FileInfo) { i.Metadata = map[string]string{"k": strings.Repeat("v", 13_000)} }, false},
		"many keys":     {func(i *hutch.FileInfo) { i.Metadata = many }, false},
	} {
		info := goodInfo()
		tt.change(&info)
		c := start(t, answer(200, toJSON(t, info)))
		got, err := c.StatFile(within(t), hutch.FileRef{Path: "x"})
		switch {
		case tt.ok && (err != nil || toJSON(t, got) != toJSON(t, info)):
			t.Errorf("%s: got %+v, %v", name, got, err)
		case !tt.ok && !errors.Is(err, hutch.ErrGuestUnresponsive):
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	info := goodInfo()
	info.Owner, info.ModTime = "a\x1b[2Jb\n"+strings.Repeat("c", 1000), time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)
	got, err := start(t, answer(200, toJSON(t, info))).StatFile(within(t), hutch.FileRef{Path: "x"})
	if err != nil || strings.ContainsAny(got.Owner, "\x1b\n") || len(got.Owner) > maxAccount || !got.ModTime.IsZero() {
		t.Errorf("cleaned: %+v, %v", got, err)
	}
}

func TestFileLists(t *testing.T) {
	entry := toJSON(t, goodInfo())
	entries := func(n int) string { return strings.TrimSuffix(strings.Repeat(entry+",", n), ",") }
	for name, tt := range map[string]struct {
		body string
		want int // entries; negative = nonsense
	}{
		"empty":        {`{"entries":[]}`, 0},
		"null":         {`{"entries":null}`, 0},
		"full":         {`{"entries":[` + entries(3) + `],"next":"YQ"}`, 3},
		"too many":     {`{"entries":[` + entries(4) + `]}`, -1},
		"very many":    {`{"entries":[` + entries(hutch.MaxListLimit+1) + `]}`, -1},
		"bad cursor":   {`{"entries":[` + entries(1) + `],"next":"a b"}`, -1},
		"long cursor":  {`{"entries":[` + entries(1) + `],"next":"` + strings.Repeat("a", 20_000) + `"}`, -1},
		"never ending": {`{"entries":[],"next":"YQ"}`, -1},
		"long entry":   {`{"entries":[{"path":"/` + strings.Repeat("x", 300_000) + `"}]}`, -1},
		"bad entry":    {`{"entries":[{}]}`, -1},
		"not a list":   {`{"entries":{"a":1}}`, -1},
	} {
		l, err := start(t, answer(200, tt.body)).ListFiles(within(t), hutch.ListFiles{FileRef: hutch.FileRef{Path: "/a"}, Limit: 3})
		if tt.want < 0 && !errors.Is(err, hutch.ErrGuestUnresponsive) || tt.want >= 0 && (err != nil || len(l.Entries) != tt.want || l.Entries == nil) {
			t.Errorf("%s: %d entries, %v", name, len(l.Entries), err)
		}
	}
}

// sends is a handler that answers with frames.
func sends(frames ...[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for _, f := range frames {
			_, _ = w.Write(f)
		}
	}
}

func frameOf(kind guestapi.FileFrameType, payload string) []byte {
	b := append(make([]byte, guestapi.FileFrameHeader), payload...)
	guestapi.PutFileFrame(b, kind)
	return b
}

func fileHead(t testing.TB) []byte { return frameOf(guestapi.FileHead, toJSON(t, goodInfo())) }

var fileEnd = frameOf(guestapi.FileFinal, "{}")

func TestFileContent(t *testing.T) {
	refused := frameOf(guestapi.FileFinal, `{"error":{"error":"no right","code":"forbidden"}}`)
	for name, tt := range map[string]struct {
		frames [][]byte
		want   string
		code   hutch.Code // of the end; empty = a clean one
	}{
		"whole":         {[][]byte{fileHead(t), frameOf(guestapi.FileData, "ab"), frameOf(guestapi.FileData, ""), frameOf(guestapi.FileData, "c"), fileEnd}, "abc", ""},
		"empty":         {[][]byte{fileHead(t), fileEnd}, "", ""},
		"cut":           {[][]byte{fileHead(t), frameOf(guestapi.FileData, "ab")}, "ab", hutch.CodeGuestUnresponsive},
		"cut in frame":  {[][]byte{fileHead(t), frameOf(guestapi.FileData, "abc")[:7]}, "", hutch.CodeGuestUnresponsive},
		"refused late":  {[][]byte{fileHead(t), frameOf(guestapi.FileData, "ab"), refused}, "ab", hutch.CodeForbidden},
		"too much":      {[][]byte{fileHead(t), frameOf(guestapi.FileData, "abcdefgh"), fileEnd}, "", hutch.CodeGuestUnresponsive},
		"item":          {[][]byte{fileHead(t), frameOf(guestapi.FileItem, "{}"), fileEnd}, "", hutch.CodeGuestUnresponsive},
		"second head":   {[][]byte{fileHead(t), fileHead(t), fileEnd}, "", hutch.CodeGuestUnresponsive},
		"no such frame": {[][]byte{fileHead(t), frameOf(9, "x"), fileEnd}, "", hutch.CodeGuestUnresponsive},
		"lying length":  {[][]byte{fileHead(t), {byte(guestapi.FileData), 0xff, 0xff, 0xff, 0xff}}, "", hutch.CodeGuestUnresponsive},
		"false end":     {[][]byte{fileHead(t), frameOf(guestapi.FileFinal, "x")}, "", hutch.CodeGuestUnresponsive},
		"claims gone":   {[][]byte{fileHead(t), frameOf(guestapi.FileFinal, `{"error":{"code":"sandbox_gone"}}`)}, "", hutch.CodeGuestUnresponsive},
	} {
		c := start(t, sends(tt.frames...))
		for range 2 {
			f, err := c.OpenFile(within(t), hutch.ReadFile{FileRef: hutch.FileRef{Path: "x"}, Length: 5})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := io.ReadAll(iotest.OneByteReader(f.Body))
			var he *hutch.Error
			if string(got) != tt.want || (tt.code == "") != (err == nil) || err != nil && (!errors.As(err, &he) || he.Code != tt.code) {
				t.Errorf("%s: got %q, %v", name, got, err)
			}
			if _, again := f.Body.Read(make([]byte, 1)); again == nil {
				t.Errorf("%s: it can be read after its end", name)
			}
			f.Body.Close()
		}
	}
	for name, frames := range map[string][][]byte{
		"nothing":     {},
		"no head":     {frameOf(guestapi.FileData, "x"), fileEnd},
		"only an end": {fileEnd},
		"bad head":    {frameOf(guestapi.FileHead, `{"path":"x"}`), fileEnd},
	} {
		if _, err := start(t, sends(frames...)).OpenFile(within(t), hutch.ReadFile{}); !errors.Is(err, hutch.ErrGuestUnresponsive) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	_, err := start(t, answer(403, `{"error":"not yours","code":"forbidden"}`)).OpenFile(within(t), hutch.ReadFile{})
	if !errors.Is(err, hutch.ErrForbidden) {
		t.Errorf("refused: got %v", err)
	}
}

// A guest that stops in the middle holds nobody beyond the context, however it is waited for.
func TestFileStalls(t *testing.T) {
	blocked := make(chan struct{})
	t.Cleanup(func() { close(blocked) })
	stall := func(frames ...[]byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, f := range frames {
				_, _ = w.Write(f)
			}
			if len(frames) > 0 {
				_ = http.NewResponseController(w).Flush()
			}
			<-blocked
		}
	}
	c, half := start(t, stall()), start(t, stall(fileHead(t)))
	for name, call := range map[string]func(context.Context) error{
		"stat": func(ctx context.Context) error {
			_, err := c.StatFile(ctx, hutch.FileRef{})
			return err
		},
		"open": func(ctx context.Context) error {
			_, err := c.OpenFile(ctx, hutch.ReadFile{})
			return err
		},
		"read": func(ctx context.Context) error {
			f, err := half.OpenFile(ctx, hutch.ReadFile{})
			if err == nil {
				_, err = f.Body.Read(make([]byte, 1))
			}
			return err
		},
		"write": func(ctx context.Context) error {
			_, err := c.WriteFile(ctx, hutch.WriteFile{Content: zeros{}})
			return err
		},
		"unpack": func(ctx context.Context) error {
			_, err := c.WriteArchive(ctx, hutch.WriteArchive{Content: zeros{}})
			return err
		},
		"search": func(ctx context.Context) error {
			_, err := c.SearchFiles(ctx, hutch.SearchFiles{}, nil)
			return err
		},
		"watch": func(ctx context.Context) error {
			return half.WatchFiles(ctx, hutch.WatchFiles{}, func() error { return nil }, nil)
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begin := time.Now()
		if err := call(ctx); !errors.Is(err, hutch.ErrGuestUnresponsive) {
			t.Errorf("%s: got %v", name, err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s: it took %s", name, took)
		}
		cancel()
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestFileStreams(t *testing.T) {
	match := func(m hutch.FileMatch) []byte { return frameOf(guestapi.FileItem, toJSON(t, m)) }
	good := match(hutch.FileMatch{Path: "/a", Type: hutch.TypeFile, Line: 1, Column: 2, Text: "x"})
	searched := frameOf(guestapi.FileFinal, `{"search":{"Truncated":true,"Skipped":3}}`)
	for name, tt := range map[string]struct {
		frames [][]byte
		want   int // matches handed on
		ok     bool
	}{
		"whole":        {[][]byte{good, good, searched}, 2, true},
		"nothing":      {[][]byte{searched}, 0, true},
		"cut":          {[][]byte{good}, 1, false},
		"no result":    {[][]byte{good, fileEnd}, 1, false},
		"too many":     {[][]byte{good, good, good, searched}, 2, false},
		"bad path":     {[][]byte{match(hutch.FileMatch{Path: "a", Type: hutch.TypeFile}), searched}, 0, false},
		"bad type":     {[][]byte{match(hutch.FileMatch{Path: "/a"}), searched}, 0, false},
		"bad line":     {[][]byte{match(hutch.FileMatch{Path: "/a", Type: hutch.TypeFile, Line: -1}), searched}, 0, false},
		"long line":    {[][]byte{match(hutch.FileMatch{Path: "/a", Type: hutch.TypeFile, Text: strings.Repeat("x", 200_000)}), searched}, 0, false},
		"bad skipped":  {[][]byte{frameOf(guestapi.FileFinal, `{"search":{"Skipped":-1}}`)}, 0, false},
		"not a match":  {[][]byte{frameOf(guestapi.FileItem, "["), searched}, 0, false},
		"data instead": {[][]byte{frameOf(guestapi.FileData, "x"), searched}, 0, false},
	} {
		n := 0
		r, err := start(t, sends(tt.frames...)).SearchFiles(within(t), hutch.SearchFiles{Limit: 2}, func(hutch.FileMatch) error { n++; return nil })
		if n != tt.want || tt.ok != (err == nil) || !tt.ok && !errors.Is(err, hutch.ErrGuestUnresponsive) || tt.ok && r != (hutch.SearchResult{Truncated: true, Skipped: 3}) {
			t.Errorf("search, %s: %d matches, %+v, %v", name, n, r, err)
		}
	}
	event := func(e any) []byte { return frameOf(guestapi.FileItem, toJSON(t, e)) }
	info := goodInfo()
	armed := frameOf(guestapi.FileHead, "{}")
	over := frameOf(guestapi.FileFinal, `{"error":{"error":"gone","code":"not_found"}}`)
	for name, tt := range map[string]struct {
		frames [][]byte
		want   int
		code   hutch.Code
	}{
		"whole":      {[][]byte{armed, event(hutch.FileEvent{Op: hutch.OpCreate, Name: "a/b", Entry: &info}), event(hutch.FileEvent{Op: hutch.OpOverflow}), over}, 2, hutch.CodeNotFound},
		"cut":        {[][]byte{armed, event(hutch.FileEvent{Op: hutch.OpCreate, Name: "a"})}, 1, hutch.CodeGuestUnresponsive},
		"no reason":  {[][]byte{armed, fileEnd}, 0, hutch.CodeGuestUnresponsive},
		"not armed":  {[][]byte{event(hutch.FileEvent{Op: hutch.OpCreate, Name: "a"}), over}, 0, hutch.CodeGuestUnresponsive},
		"no such op": {[][]byte{armed, event(hutch.FileEvent{Op: "melt", Name: "a"}), over}, 0, hutch.CodeGuestUnresponsive},
		"no name":    {[][]byte{armed, event(hutch.FileEvent{Op: hutch.OpCreate}), over}, 0, hutch.CodeGuestUnresponsive},
		"way out":    {[][]byte{armed, event(hutch.FileEvent{Op: hutch.OpCreate, Name: "../../etc/passwd"}), over}, 0, hutch.CodeGuestUnresponsive},
		"absolute":   {[][]byte{armed, event(hutch.FileEvent{Op: hutch.OpCreate, Name: "/etc/passwd"}), over}, 0, hutch.CodeGuestUnresponsive},
		"bad entry":  {[][]byte{armed, event(hutch.FileEvent{Op: hutch.OpCreate, Name: "a", Entry: &hutch.FileInfo{}}), over}, 0, hutch.CodeGuestUnresponsive},
	} {
		n, ready := 0, false
		err := start(t, sends(tt.frames...)).WatchFiles(within(t), hutch.WatchFiles{}, func() error { ready = true; return nil }, func(e hutch.FileEvent) error {
			n++
			if e.Entry != nil && e.Entry.Path != info.Path {
				t.Errorf("watch, %s: entry %+v", name, e.Entry)
			}
			return nil
		})
		var he *hutch.Error
		if n != tt.want || !errors.As(err, &he) || he.Code != tt.code || ready != (name != "not armed") {
			t.Errorf("watch, %s: %d events, ready %v, %v", name, n, ready, err)
		}
	}
	stop := errors.New("stop")
	if err := start(t, sends(armed, over)).WatchFiles(within(t), hutch.WatchFiles{}, func() error { return stop }, nil); !errors.Is(err, stop) {
		t.Errorf("ready fails: %v", err)
	}
}

// received is what a guest gets of an upload.
func received(t *testing.T, got *guestapi.WriteFile, content *bytes.Buffer, reply any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := guestapi.ReadFileHead(r.Body, got); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(content, r.Body)
		_ = json.NewEncoder(w).Encode(reply)
	}
}

func TestFileUploads(t *testing.T) {
	info := goodInfo()
	whole := guestapi.WriteReply{WriteResult: hutch.WriteResult{Info: &info, Offset: 5}}
	for name, tt := range map[string]struct {
		w     hutch.WriteFile
		reply guestapi.WriteReply
		code  hutch.Code
	}{
		"whole":            {hutch.WriteFile{}, whole, ""},
		"last":             {hutch.WriteFile{Upload: "u", Last: true}, whole, ""},
		"part":             {hutch.WriteFile{Upload: "u"}, guestapi.WriteReply{WriteResult: hutch.WriteResult{Offset: 7}}, ""},
		"gap":              {hutch.WriteFile{Upload: "u", Offset: 9}, guestapi.WriteReply{WriteResult: hutch.WriteResult{Offset: 7}, Gap: true}, hutch.CodeConflict},
		"no gap":           {hutch.WriteFile{Upload: "u", Offset: 5}, guestapi.WriteReply{WriteResult: hutch.WriteResult{Offset: 7}, Gap: true}, hutch.CodeGuestUnresponsive},
		"gap of no upload": {hutch.WriteFile{}, guestapi.WriteReply{Gap: true}, hutch.CodeGuestUnresponsive},
		"no file":          {hutch.WriteFile{}, guestapi.WriteReply{}, hutch.CodeGuestUnresponsive},
		"file too early":   {hutch.WriteFile{Upload: "u"}, whole, hutch.CodeGuestUnresponsive},
		"negative":         {hutch.WriteFile{Upload: "u"}, guestapi.WriteReply{WriteResult: hutch.WriteResult{Offset: -1}}, hutch.CodeGuestUnresponsive},
		"bad file":         {hutch.WriteFile{}, guestapi.WriteReply{WriteResult: hutch.WriteResult{Info: &hutch.FileInfo{}}}, hutch.CodeGuestUnresponsive},
	} {
		var got guestapi.WriteFile
		var content bytes.Buffer
		tt.w.Path, tt.w.Content = "/a/f", strings.NewReader("hello")
		r, err := start(t, received(t, &got, &content, tt.reply)).WriteFile(within(t), tt.w)
		var he *hutch.Error
		if (tt.code == "") != (err == nil) || err != nil && (!errors.As(err, &he) || he.Code != tt.code) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if (err == nil || tt.code == hutch.CodeConflict) && r.Offset != tt.reply.Offset {
			t.Errorf("%s: offset %d", name, r.Offset)
		}
		if got.Path != "/a/f" || got.Upload != tt.w.Upload || content.String() != "hello" {
			t.Errorf("%s: the guest got %+v with %q", name, got, content.String())
		}
	}
}

// An upload is made once, whatever happens, and its content is left alone after it.
func TestUploadOnce(t *testing.T) {
	var calls atomic.Int32
	c := start(t, func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		panic(http.ErrAbortHandler)
	})
	if _, err := c.WriteFile(within(t), hutch.WriteFile{Content: strings.NewReader("x")}); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("a broken call: %v", err)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
	failed := errors.New("failed")
	c = start(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	_, err := c.WriteFile(within(t), hutch.WriteFile{Content: iotest.ErrReader(failed)})
	if !errors.Is(err, failed) || !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("content that cannot be read: %v", err)
	}
	_, err = c.WriteFile(within(t), hutch.WriteFile{Content: iotest.ErrReader(hutch.ErrTooLarge)})
	if !errors.Is(err, hutch.ErrTooLarge) {
		t.Errorf("content that is refused: %v", err)
	}
	var over atomic.Bool
	src := readerFunc(func(p []byte) (int, error) {
		if over.Load() {
			t.Error("content was read after the call")
		}
		return len(p), nil
	})
	c = start(t, answerAtOnce(403, `{"error":"no","code":"forbidden"}`))
	for range 20 {
		if _, err = c.WriteFile(within(t), hutch.WriteFile{Content: src}); !errors.Is(err, hutch.ErrForbidden) {
			t.Fatalf("refused before its end: %v", err)
		}
		over.Store(true)
		if _, err := c.Health(within(t)); err == nil { // time for a reader to go on
			t.Fatal("health was answered")
		}
		over.Store(false)
	}
}

// answerAtOnce answers without reading the body.
func answerAtOnce(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestFileArchives(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		ok   bool
	}{
		"good":     {`{"files":3,"bytes":5,"skipped":["dev: a device"]}`, true},
		"negative": {`{"files":-3}`, false},
		"many":     {`{"skipped":[` + strings.TrimSuffix(strings.Repeat(`"x",`, 101), ",") + `]}`, false},
	} {
		r, err := start(t, answer(200, tt.body)).WriteArchive(within(t), hutch.WriteArchive{Content: strings.NewReader("x")})
		if tt.ok != (err == nil) || tt.ok && (r.Files != 3 || r.Bytes != 5 || len(r.Skipped) != 1) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// Whatever a guest says of files, what is handed on is within its bounds.
func FuzzFileAnswers(f *testing.F) {
	f.Add([]byte(`{"name":"f","path":"/f","type":"file","size":1,"metadata":{"a":"b"},"mod_time":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"entries":[{"name":"f","path":"/f","type":"file"}],"next":"YQ"}`))
	f.Add([]byte(`{"op":"create","name":"a","entry":{"name":"f","path":"/f","type":"file"}}`))
	f.Add([]byte(`{"path":"/a","type":"file","line":1,"text":"x"}`))
	f.Add([]byte(`{"info":{"name":"f","path":"/f","type":"file"},"offset":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(i hutch.FileInfo) {
			if i.Path[0] != '/' || len(i.Path) > maxShownPath || len(i.Metadata) > maxShownMeta || i.Size < 0 || strings.Contains(i.Name, "/") && i.Name != "/" {
				t.Fatalf("handed on: %+v", i)
			}
		}
		var w wireFileInfo
		if json.Unmarshal(b, &w) == nil {
			if i, err := w.info(); err == nil {
				check(i)
			}
		}
		var wl wireFileList
		if json.Unmarshal(b, &wl) == nil {
			if l, err := wl.list(2); err == nil {
				if len(l.Entries) > 2 {
					t.Fatal("more than asked for")
				}
				for _, i := range l.Entries {
					check(i)
				}
			}
		}
		if e, err := fileEvent(b); err == nil && (strings.HasPrefix(e.Name, "/") || strings.HasPrefix(e.Name, "..") && (e.Name == ".." || e.Name[2] == '/')) {
			t.Fatalf("event %+v", e)
		}
		if m, err := fileMatch(b); err == nil && (m.Path[0] != '/' || m.Line < 0) {
			t.Fatalf("match %+v", m)
		}
		var wr wireWriteReply
		if json.Unmarshal(b, &wr) == nil {
			if r, err := wr.result(hutch.WriteFile{}); err == nil && r.Info != nil {
				check(*r.Info)
			}
		}
	})
}
