package guestclient

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

func frames(t testing.TB, fs ...guestapi.Frame) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, f := range fs {
		if err := guestapi.WriteFrame(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func out(off int64, s string) guestapi.Frame {
	return guestapi.Frame{Type: guestapi.FrameStdout, Offset: off, Payload: []byte(s)}
}

func errOut(off int64, s string) guestapi.Frame {
	return guestapi.Frame{Type: guestapi.FrameStderr, Offset: off, Payload: []byte(s)}
}

func gap(t testing.TB, stream string, from, to int64) guestapi.Frame {
	return guestapi.Frame{Type: guestapi.FrameGap, Payload: []byte(toJSON(t, guestapi.Gap{Stream: stream, From: from, To: to}))}
}

func endFrame(t testing.TB) guestapi.Frame {
	return guestapi.Frame{Type: guestapi.FrameEnd, Payload: []byte(toJSON(t, goodStatus()))}
}

func TestFollow(t *testing.T) {
	keep := guestapi.Frame{Type: guestapi.FrameKeepalive}
	wire := frames(t, out(5, "abc"), keep, errOut(0, "x"), gap(t, "stdout", 8, 100), out(100, "tail"), endFrame(t))
	var query string
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		_, _ = w.Write(wire)
	})
	f, err := c.Follow(within(t), id, FollowOptions{Stdout: 5, Budgeted: true, NoWait: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if want := "budget=1&stderr=0&stdout=5&wait=0"; query != want {
		t.Errorf("query %q, want %q", query, want)
	}
	var got bytes.Buffer
	for {
		fr, err := f.Next(within(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := guestapi.WriteFrame(&got, fr); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got.Bytes(), wire) {
		t.Errorf("got other frames than were sent")
	}
	if st := f.Status(); st.ID != id || st.Result == nil || st.Result.End != hutch.ExecTimeout {
		t.Errorf("status: got %+v", st)
	}
	if _, err := f.Next(within(t)); !errors.Is(err, io.EOF) {
		t.Errorf("Next after the end: got %v", err)
	}
}

func TestFollowNonsense(t *testing.T) {
	big := make([]byte, 600)
	other := goodStatus()
	other.ID = "ebbbbbbbbbbbbbbbbbbbb"
	tests := map[string][]byte{
		"no end frame":        frames(t, out(0, "abc")),
		"nothing":             nil,
		"half a frame":        frames(t, out(0, "abc"))[:10],
		"hole":                frames(t, out(1, "abc"), endFrame(t)),
		"backwards":           frames(t, out(0, "abc"), out(1, "b"), endFrame(t)),
		"empty data":          frames(t, out(0, ""), endFrame(t)),
		"gap elsewhere":       frames(t, gap(t, "stdout", 3, 5), endFrame(t)),
		"gap backwards":       frames(t, gap(t, "stdout", 0, 0), endFrame(t)),
		"gap of what":         frames(t, gap(t, "stdin", 0, 5), endFrame(t)),
		"gap of nonsense":     frames(t, guestapi.Frame{Type: guestapi.FrameGap, Payload: []byte("{")}, endFrame(t)),
		"over the budget":     frames(t, out(0, string(big)), out(600, string(big)), endFrame(t)),
		"fat keepalive":       frames(t, guestapi.Frame{Type: guestapi.FrameKeepalive, Payload: big}, endFrame(t)),
		"end of another":      frames(t, guestapi.Frame{Type: guestapi.FrameEnd, Payload: []byte(toJSON(t, other))}),
		"end of nonsense":     frames(t, guestapi.Frame{Type: guestapi.FrameEnd, Payload: []byte("[]")}),
		"unknown frame":       frames(t, guestapi.Frame{Type: 77}, endFrame(t)),
		"a frame of 4 GiB":    {1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		"end near the offset": frames(t, gap(t, "stdout", 0, 1<<63-1), out(1<<63-1, "ab"), endFrame(t)),
	}
	for name, wire := range tests {
		t.Run(name, func(t *testing.T) {
			c := start(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wire) })
			f, err := c.Follow(within(t), id, FollowOptions{Budgeted: true, Budget: 1000})
			for err == nil {
				_, err = f.Next(within(t))
			}
			if !errors.Is(err, hutch.ErrGuestUnresponsive) {
				t.Fatalf("got %v, want guest_unresponsive", err)
			}
		})
	}
}

func TestFollowContexts(t *testing.T) {
	more := make(chan struct{})
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(frames(t, out(0, "a")))
		_ = http.NewResponseController(w).Flush()
		<-more
		_, _ = w.Write(frames(t, out(1, "b")))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	f, err := c.Follow(ctx, id, FollowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if fr, err := f.Next(within(t)); err != nil || string(fr.Payload) != "a" {
		t.Fatalf("first: got %q, %v", fr.Payload, err)
	}
	short, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer stop()
	if _, err := f.Next(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("nothing to read: got %v", err)
	}
	close(more)
	if fr, err := f.Next(within(t)); err != nil || string(fr.Payload) != "b" {
		t.Fatalf("after a deadline: got %q, %v", fr.Payload, err)
	}
	cancel()
	if _, err := f.Next(within(t)); !errors.Is(err, hutch.ErrCancelled) {
		t.Fatalf("after cancel: got %v, want cancelled", err)
	}
}

// FuzzStatus: whatever an end frame holds, what is let through keeps its promises.
func FuzzStatus(f *testing.F) {
	good, _ := json.Marshal(goodStatus())
	f.Add(good)
	f.Add([]byte(`{"id":"eaaaaaaaaaaaaaaaaaaaa","running":true,"pid":1}`))
	f.Add([]byte(`{"id":"eaaaaaaaaaaaaaaaaaaaa","result":{"end":"exit","killed":null,"limits_hit":[]}}`))
	f.Add([]byte(`{"id":"eaaaaaaaaaaaaaaaaaaaa","result":{"end":"exit","started_at":"0000-01-01T00:00:00+23:59"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := DecodeStatus(b)
		if err != nil {
			if !errors.Is(err, hutch.ErrGuestUnresponsive) {
				t.Fatalf("got %v, want guest_unresponsive", err)
			}
			return
		}
		if !execID.MatchString(string(st.ID)) || st.PID < 0 || st.Stdout < 0 || st.Stderr < 0 || st.Running != (st.Result == nil) {
			t.Fatalf("let through %+v", st)
		}
		if _, err := json.Marshal(st); err != nil {
			t.Fatalf("what was let through cannot be recorded: %v", err)
		}
		if r := st.Result; r != nil {
			for _, o := range []hutch.Output{r.Stdout, r.Stderr} {
				if kept := int64(len(o.Head) + len(o.Tail)); kept > hutch.MaxOutputBytes || o.Dropped < 0 || kept+o.Dropped != o.Total {
					t.Fatalf("let through output %+v", o)
				}
			}
			if len(r.Killed) > maxKilled || len(r.LeftRunning) > maxKilled || len(r.Detail) > maxText || r.CPU < 0 {
				t.Fatalf("let through %+v", r)
			}
		}
	})
}

// FuzzFrames: whatever a follow answer holds, the offsets of what is let through are
// without a hole, and the budget holds.
func FuzzFrames(f *testing.F) {
	f.Add(frames(f, out(0, "abc"), errOut(0, "d"), gap(f, "stdout", 3, 9), out(9, "z"), endFrame(f)))
	f.Add([]byte{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 'x'})
	f.Fuzz(func(t *testing.T, wire []byte) {
		ctx := t.Context()
		fl := &Follow{frames: make(chan guestapi.Frame)}
		check := &frameCheck{id: id, budgeted: true, budget: 64}
		go func() {
			fl.err = fl.pump(ctx, bytes.NewReader(wire), check)
			close(fl.frames)
		}()
		next := [2]int64{}
		data := [2]int{}
		for {
			fr, err := fl.Next(ctx)
			if err != nil {
				return
			}
			switch fr.Type {
			case guestapi.FrameStdout, guestapi.FrameStderr:
				s := fr.Type - guestapi.FrameStdout
				if fr.Offset != next[s] {
					t.Fatalf("a hole: %d where %d was next", fr.Offset, next[s])
				}
				next[s] += int64(len(fr.Payload))
				if data[s] += len(fr.Payload); data[s] > 64 {
					t.Fatalf("%d bytes over a budget of 64", data[s])
				}
			case guestapi.FrameGap:
				var g guestapi.Gap
				if err := json.Unmarshal(fr.Payload, &g); err != nil || g.To <= g.From {
					t.Fatalf("let through gap %s", fr.Payload)
				}
				s := map[string]int{"stdout": 0, "stderr": 1}[g.Stream]
				if g.From != next[s] {
					t.Fatalf("a hole: gap from %d where %d was next", g.From, next[s])
				}
				next[s] = g.To
			default:
			}
		}
	})
}

// FuzzRefusal: whatever refuses a call, the error has a code that a guest may use, and
// a short text on one line.
func FuzzRefusal(f *testing.F) {
	f.Add(400, []byte(`{"error":"a\nb","code":"conflict","field":"cwd"}`))
	f.Add(500, []byte(`{"error":"\ud800","code":"sandbox_gone"}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		var he *hutch.Error
		if err := refusal(status, body); !errors.As(err, &he) {
			t.Fatalf("got %v, want a hutch.Error", err)
		}
		if !refusalCodes[he.Code] && he.Code != hutch.CodeGuestUnresponsive {
			t.Fatalf("code %q", he.Code)
		}
		if len(he.Message) > maxText || cleanText(he.Message, maxText) != he.Message || he.Message == "" {
			t.Fatalf("text %q", he.Message)
		}
	})
}

// TestStartFollow: the answer to a start has all of a follow, or is that of an agent that does not
// know how, or makes no sense.
func TestStartFollow(t *testing.T) {
	running := guestapi.ExecStatus{ID: id, PID: 12, Running: true, StartedAt: 5}
	head := func(v any) string { return base64.StdEncoding.EncodeToString([]byte(toJSON(t, v))) }
	other := running
	other.ID = "y"
	for name, c := range map[string]struct {
		head     string
		body     []byte
		followed bool
		fails    bool
	}{
		"followed":              {head(running), frames(t, out(0, "abc"), endFrame(t)), true, false},
		"an agent before it":    {"", []byte(toJSON(t, running)), false, false},
		"ended":                 {"", []byte(toJSON(t, goodStatus())), false, false},
		"no base64":             {"*", nil, false, true},
		"no status":             {head("x"), nil, false, true},
		"ended, and a follow":   {head(goodStatus()), nil, false, true},
		"of another":            {head(other), nil, false, true},
		"of another, in a body": {"", []byte(toJSON(t, other)), false, true},
		"no status in the body": {"", []byte("[]"), false, true},
		"more than any status":  {"", bytes.Repeat([]byte(" "), 4<<20), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			var query string
			g := start(t, func(w http.ResponseWriter, r *http.Request) {
				query = r.Method + " " + r.URL.String()
				if c.head != "" {
					w.Header().Set(guestapi.HeaderExec, c.head)
				}
				_, _ = w.Write(c.body)
			})
			st, f, err := g.StartFollow(within(t), t.Context(), guestapi.StartExec{ID: id}, FollowOptions{Budgeted: true, Budget: 1000})
			if want := "POST /v1/exec?budget=1&follow=1&stderr=0&stdout=0&wait=1"; query != want {
				t.Errorf("asked %q, want %q", query, want)
			}
			if c.fails {
				if !errors.Is(err, hutch.ErrGuestUnresponsive) || f != nil {
					t.Errorf("got %+v, %v, %v", st, f, err)
				}
				return
			}
			if err != nil || st.ID != id || st.PID != 12 || (f != nil) != c.followed {
				t.Fatalf("got %+v, %v, %v", st, f, err)
			}
			if f == nil {
				return
			}
			defer func() { _ = f.Close() }()
			if fr, err := f.Next(within(t)); err != nil || string(fr.Payload) != "abc" {
				t.Errorf("got %+v, %v", fr, err)
			}
			if fr, err := f.Next(within(t)); err != nil || fr.Type != guestapi.FrameEnd || f.Status().Result == nil {
				t.Errorf("got %+v, %v", fr, err)
			}
		})
	}
}

// TestStartFollowOutlivesTheStart: its context is of the start, and a start whose caller leaves
// leaves no follow.
func TestStartFollowOutlivesTheStart(t *testing.T) {
	running := guestapi.ExecStatus{ID: id, PID: 12, Running: true, StartedAt: 5}
	more, left := make(chan struct{}), make(chan struct{})
	mute := false
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		if !mute {
			w.Header().Set(guestapi.HeaderExec, base64.StdEncoding.EncodeToString([]byte(toJSON(t, running))))
			_ = http.NewResponseController(w).Flush()
			<-more
			_, _ = w.Write(frames(t, out(0, "abc"), endFrame(t)))
			return
		}
		<-r.Context().Done()
		close(left)
	})
	ctx, cancel := context.WithCancel(t.Context())
	_, f, err := c.StartFollow(ctx, within(t), guestapi.StartExec{ID: id}, FollowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	close(more)
	if fr, err := f.Next(within(t)); err != nil || string(fr.Payload) != "abc" {
		t.Errorf("got %+v, %v", fr, err)
	}
	_ = f.Close()
	mute = true
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, f, err := c.StartFollow(ctx, within(t), guestapi.StartExec{ID: id}, FollowOptions{}); !errors.Is(err, hutch.ErrGuestUnresponsive) || f != nil {
		t.Errorf("got %v, %v", f, err)
	}
	<-left
}
