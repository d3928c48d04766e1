package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// memoryStore keeps the last file, and may spoil what it gives back.
type memoryStore struct {
	kept  []byte
	spoil func([]byte) []byte
	fail  error
}

func (m *memoryStore) upload(_ context.Context, content io.Reader, _ int64) error {
	b, err := io.ReadAll(content)
	m.kept = b
	return errors.Join(err, m.fail)
}

func (m *memoryStore) download(context.Context) (io.ReadCloser, error) {
	b := bytes.Clone(m.kept)
	if m.spoil != nil {
		b = m.spoil(b)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

func TestFileRun(t *testing.T) {
	const size = 3<<20 + 17 // more than a block, and no multiple of one
	tests := map[string]struct {
		store memoryStore
		want  string // of the error; empty: none
	}{
		"good":           {memoryStore{}, ""},
		"refused":        {memoryStore{fail: errors.New("no room")}, "upload: no room"},
		"one byte less":  {memoryStore{spoil: func(b []byte) []byte { return b[1:] }}, "came, or other ones than went"},
		"one byte more":  {memoryStore{spoil: func(b []byte) []byte { return append(b, 0) }}, "came, or other ones than went"},
		"one byte wrong": {memoryStore{spoil: func(b []byte) []byte { b[size/2]++; return b }}, "came, or other ones than went"},
		"nothing":        {memoryStore{spoil: func([]byte) []byte { return nil }}, "0 bytes of"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &clock{us: map[string]int64{}}
			err := fileRun(t.Context(), &tt.store, newContent(size), c)
			if tt.want == "" {
				if _, up := c.us[MetricUpload]; err != nil || !up || len(tt.store.kept) != size {
					t.Errorf("got %v, times %v, %d bytes", err, c.us, len(tt.store.kept))
				}
			} else if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// TestServerFiles: the calls are those of the API, and anything but success is an error.
func TestServerFiles(t *testing.T) {
	var kept []byte
	short := false
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/sandboxes/{id}/fs", func(w http.ResponseWriter, r *http.Request) {
		kept, _ = io.ReadAll(r.Body)
		n := int64(len(kept))
		if r.ContentLength != n {
			t.Errorf("the length was announced as %d of %d", r.ContentLength, n)
		}
		if short {
			n--
		}
		_ = json.NewEncoder(w).Encode(api.Written{Path: r.URL.Query().Get("path"), Bytes: n})
	})
	mux.HandleFunc("GET /v1/sandboxes/{id}/fs", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.PathValue("id") != "i1" || r.URL.Query().Get("path") != filePath {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		_, _ = w.Write(kept)
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	srv := Server{URL: s.URL + "/", Key: "secret", HTTP: s.Client()}
	store := apiFiles{srv, hutch.SandboxID("i1")}
	c := newContent(1<<20 + 1)
	if err := fileRun(t.Context(), store, c, &clock{us: map[string]int64{}}); err != nil {
		t.Fatal(err)
	}
	short = true
	if err := store.upload(t.Context(), c.reader(), c.size); err == nil || !strings.Contains(err.Error(), "are there") {
		t.Errorf("a short file: %v", err)
	}
	store.srv.Key = "wrong"
	if _, err := store.download(t.Context()); err == nil || !strings.Contains(err.Error(), "who are you?") {
		t.Errorf("a refused download: %v", err)
	}
}

// TestPeak: memory that was taken and given back while it was looked at is seen, and what
// was before is not.
func TestPeak(t *testing.T) {
	pid := os.Getpid()
	// Not from the heap, which keeps what it once had.
	touch := func(n int) error {
		b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		for i := 0; i < n; i += 4096 {
			b[i] = 1
		}
		return unix.Munmap(b)
	}
	const much = 256 << 20
	idle, err := peakOf(pid, 1, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	busy, err := peakOf(pid, 2, func() error { return touch(much) })
	if err != nil {
		t.Fatal(err)
	}
	if busy.Bytes != 2 || busy.KB < idle.KB+much>>11 { // what the rest of the process has varies
		t.Errorf("idle %+v, with %d KiB taken %+v", idle, much>>10, busy)
	}
	if _, err := peakOf(pid, 1, func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("a failure under it: %v", err)
	}
	if p, err := peakOf(0, 1, func() error { return nil }); p != nil || err != nil {
		t.Errorf("a process that is not ours: %v, %v", p, err)
	}
}

// TestFilesReport: speeds, verdicts and memory are shown, and a changed verdict is found.
func TestFilesReport(t *testing.T) {
	rep := newReport("files", Settings{N: 2, Bytes: 256 << 20, Baseline: true})
	file := func(subject string, pair int, up, down int64) Run {
		return Run{Subject: subject, Pair: pair, US: map[string]int64{MetricUpload: up, MetricDownload: down}}
	}
	rep.Peaks = []Peak{{16 << 20, 40 << 10}, {256 << 20, 41 << 10}}
	rep, err := rep.finish([]Run{
		file(SubjectHutch, 1, 1_000_000, 3_000_000), file(SubjectFloor, 1, 500_000, 1_000_000),
		file(SubjectFloor, 2, 500_000, 1_000_000), file(SubjectHutch, 2, 1_000_000, 3_000_000),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := rep.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| upload of 256 MiB | hutch | 2 | 268 | 268 | 268 | 268 | 268 |", "| upload of 256 MiB | floor | 2 | 537 |",
		"Limit for upload of 256 MiB: 2.0 × the floor. p50: within", "Limit for download of 256 MiB: 2.0 × the floor. p50: OVER",
		"with files of 16 MiB: 40.0 MiB", "with files of 256 MiB: 41.0 MiB",
		"2 uploads and downloads of each subject, of 268435456 bytes each",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, b.String())
		}
	}
	var raw bytes.Buffer
	if err := rep.Write(&raw); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bytes.NewReader(raw.Bytes())); err != nil {
		t.Errorf("it cannot be read back: %v", err)
	}
	edited := strings.Replace(raw.String(), `"p50_within": false`, `"p50_within": true`, 1)
	if _, err := Read(strings.NewReader(edited)); err == nil {
		t.Error("a changed verdict was read")
	}
}
