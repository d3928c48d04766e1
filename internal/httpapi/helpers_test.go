package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
	"hutch.dev/hutch/internal/x/sse"
)

// quick makes the waits of the API short enough to be met in tests.
var quick = httpapi.Config{SyncHold: 50 * time.Millisecond, Keepalive: 10 * time.Millisecond}

// bench is a fake service behind a real server.
type bench struct {
	*httpapitest.Fake
	t   testing.TB
	url string
	key string
}

func newBench(t testing.TB, cfg httpapi.Config) *bench {
	t.Helper()
	f := httpapitest.New()
	return &bench{Fake: f, t: t, url: f.Server(t, cfg).URL, key: httpapitest.AdminKey}
}

// as is the bench for the holder of another key.
func (b *bench) as(key string) *bench {
	c := *b
	c.key = key
	return &c
}

// answer is what came back.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

func (b *bench) request(method, path, body string, headers ...string) *http.Request {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	if b.key != "" {
		req.Header.Set("Authorization", "Bearer "+b.key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

// live is an answer that is read as it comes. Its body is closed when the test ends.
type live struct {
	StatusCode int
	Header     http.Header
	Body       io.Reader
	trailer    func(name string) string
}

func (b *bench) send(req *http.Request) *live {
	b.t.Helper()
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = res.Body.Close() })
	return &live{res.StatusCode, res.Header, res.Body, func(name string) string { return res.Trailer.Get(name) }}
}

func (b *bench) do(method, path, body string, headers ...string) answer {
	b.t.Helper()
	res := b.send(b.request(method, path, body, headers...))
	out, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatalf("%s %s: read: %v", method, path, err)
	}
	return answer{b.t, res.StatusCode, res.Header, out}
}

// want fails the test unless the status is the one given.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d; body %s", a.status, status, a.body)
	}
	return a
}

// wantError fails the test unless the answer is an error of that code about that field.
func (a answer) wantError(status int, code, field string) api.Error {
	a.t.Helper()
	a.want(status)
	e := into[api.Error](a)
	if string(e.Code) != code || e.Field != field || e.Error == "" || e.RequestID == "" {
		a.t.Fatalf("error %+v, want code %s about field %q", e, code, field)
	}
	return e
}

func into[T any](a answer) T {
	a.t.Helper()
	var v T
	dec := json.NewDecoder(bytes.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		a.t.Fatalf("decode %s: %v", a.body, err)
	}
	return v
}

// sandbox makes a sandbox and returns its id.
func (b *bench) sandbox() string {
	b.t.Helper()
	return string(into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`).want(201)).ID)
}

// events reads a stream to its end.
func (b *bench) events(res *live) []sse.Event {
	b.t.Helper()
	var out []sse.Event
	in := sse.NewReader(res.Body, 1<<20)
	for {
		ev, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			b.t.Fatalf("after %d events: %v", len(out), err)
		}
		out = append(out, ev)
	}
}

func eventData[T any](t testing.TB, ev sse.Event) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(ev.Data), &v); err != nil {
		t.Fatalf("event %s %s: %v", ev.Name, ev.Data, err)
	}
	return v
}

// eventReader reads a stream event by event.
type eventReader struct{ in *sse.Reader }

func newEventReader(r io.Reader) eventReader { return eventReader{sse.NewReader(r, 1<<20)} }

func (r eventReader) next(t testing.TB) sse.Event {
	t.Helper()
	ev, err := r.in.Next()
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// eventually waits until ok holds, for at most ten seconds.
func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(10*time.Second)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			b.t.Fatalf("not within ten seconds: %s", what)
		}
	}
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
