package guesttest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

func testOutput(t *testing.T, c *Client) {
	t.Run("A16 the last bytes are never lost", func(t *testing.T) {
		for i := range 50 {
			r := c.Sh(t, "head -c 70000 /dev/zero | tr '\\0' x")
			if r.Stdout.Total != 70000 || len(r.Stdout.Head) != 70000 || r.Stdout.Dropped != 0 {
				t.Fatalf("run %d: %d bytes of which %d kept", i, r.Stdout.Total, len(r.Stdout.Head))
			}
		}
	})
	t.Run("D01 forty MB", func(t *testing.T) {
		r := c.Sh(t, "head -c 30000000 /dev/zero | base64 -w0; echo end >&2")
		const total = 40_000_000
		o := r.Stdout
		if o.Total != total || len(o.Head) != 1<<18 || len(o.Tail) != 3<<18 || o.Dropped != total-1<<20 || o.FileDropped != 0 {
			t.Errorf("total %d, head %d, tail %d, dropped %d, file lacks %d", o.Total, len(o.Head), len(o.Tail), o.Dropped, o.FileDropped)
		}
		if got := strings.TrimSpace(string(c.Sh(t, "wc -c < "+o.Path).Stdout.Head)); got != fmt.Sprint(total) {
			t.Errorf("the file %q has %s bytes, want %d", o.Path, got, total)
		}
		if string(r.Stderr.Head) != "end\n" || r.Stderr.Path != "" {
			t.Errorf("stderr %+v", r.Stderr)
		}
	})
	t.Run("D03 one line of five MB", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "head -c 5000000 /dev/zero | tr '\\0' a", MaxOutputBytes: 8 << 20})
		f := c.Follow(t, s.ID, "wait=1")
		if !bytes.Equal(f.Stdout, bytes.Repeat([]byte("a"), 5_000_000)) || len(f.Gaps) != 0 {
			t.Errorf("%d bytes and gaps %v", len(f.Stdout), f.Gaps)
		}
		if f.LongestFrame > 64<<10 {
			t.Errorf("a frame of %d bytes", f.LongestFrame)
		}
		if o := f.End.Result.Stdout; len(o.Head) != 5_000_000 || o.Path != "" {
			t.Errorf("kept %d bytes, path %q", len(o.Head), o.Path)
		}
	})
	t.Run("D05 a cut is made at any byte and loses none", func(t *testing.T) {
		for budget := 64; budget < 72; budget++ {
			r := c.Run(t, hutch.ExecSpec{Cmd: "i=0; while [ $i -lt 50 ]; do printf '🙂'; i=$((i+1)); done", MaxOutputBytes: budget})
			want := []byte(strings.Repeat("🙂", 50))
			o := r.Stdout
			if !bytes.HasPrefix(want, o.Head) || !bytes.HasSuffix(want, o.Tail) || len(o.Head)+len(o.Tail) != budget || o.Dropped != int64(200-budget) {
				t.Errorf("budget %d: head %q, tail %q, dropped %d", budget, o.Head, o.Tail, o.Dropped)
			}
		}
	})
	t.Run("D08 bytes that are no text", func(t *testing.T) {
		if r := c.Sh(t, `printf '\377\376\000'`); string(r.Stdout.Head) != "\xff\xfe\x00" {
			t.Errorf("output %q", r.Stdout.Head)
		}
	})
	t.Run("D13 bytes that look like frames", func(t *testing.T) {
		var all []byte
		var octal strings.Builder
		for i := range 256 {
			all = append(all, byte(i))
			fmt.Fprintf(&octal, `\%03o`, i)
		}
		frame := &bytes.Buffer{}
		if err := guestapi.WriteFrame(frame, guestapi.Frame{Type: guestapi.FrameEnd, Payload: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
		for _, b := range frame.Bytes() {
			fmt.Fprintf(&octal, `\%03o`, b)
		}
		s := c.Start(t, hutch.ExecSpec{Cmd: "printf '" + octal.String() + "'; exit 3"})
		f := c.Follow(t, s.ID, "wait=1")
		if !bytes.Equal(f.Stdout, append(all, frame.Bytes()...)) || f.End.Result.ExitCode != 3 {
			t.Errorf("output %q, result %+v", f.Stdout, f.End.Result)
		}
	})
	t.Run("B15 nobody reads", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "yes | head -c 200000000", Background: true})
		Eventually(t, 60*time.Second, "it has ended", func() bool { return !c.Status(t, s.ID).Running })
		o := c.Status(t, s.ID).Result.Stdout
		if o.Total != 200_000_000 || len(o.Head)+len(o.Tail) != 1<<20 {
			t.Errorf("total %d, kept %d", o.Total, len(o.Head)+len(o.Tail))
		}
		if o.Path == "" || o.FileDropped > 0 {
			t.Errorf("path %q, file lacks %d", o.Path, o.FileDropped)
		}
		c.Sh(t, "rm -r "+o.Path)
	})
}

func testFollow(t *testing.T, c *Client) {
	const n = 30000
	want := &bytes.Buffer{}
	for i := 1; i <= n; i++ {
		fmt.Fprintf(want, "%d\n", i)
	}
	total := want.Len()
	count := fmt.Sprintf("i=1; while [ $i -le %d ]; do echo $i; i=$((i+1)); done", n)

	t.Run("from its start, in the same call", func(t *testing.T) { testStartFollow(t, c, count, want.Bytes()) })
	t.Run("any offset, any number of readers, while it writes", func(t *testing.T) {
		for _, budget := range []int{1 << 20, 10_000} {
			s := c.Start(t, hutch.ExecSpec{Cmd: "seq 1 " + fmt.Sprint(n), MaxOutputBytes: budget, Background: true})
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					f, err := c.TryFollow(t.Context(), s.ID, "wait=1", nil)
					if err != nil || !bytes.Equal(f.Stdout, want.Bytes()) || len(f.Gaps) != 0 {
						t.Errorf("budget %d: %d bytes, gaps %v, %v", budget, len(f.Stdout), f.Gaps, err)
					}
				})
			}
			wg.Wait()
			for _, off := range []int{0, 1, 2500, 5000, 99_999, total - 1, total} {
				f := c.Follow(t, s.ID, fmt.Sprintf("stdout=%d", off))
				if !bytes.Equal(f.Stdout, want.Bytes()[off:]) || len(f.Gaps) != 0 || f.End.Result == nil {
					t.Errorf("budget %d, from %d: %d bytes, gaps %v", budget, off, len(f.Stdout), f.Gaps)
				}
			}
		}
	})
	t.Run("budget holds the tail back", func(t *testing.T) {
		const budget = 10_000
		s := c.Start(t, hutch.ExecSpec{Cmd: count + "; echo end >&2; sleep 1", MaxOutputBytes: budget})
		var early int
		running := true
		f, err := c.TryFollow(t.Context(), s.ID, "wait=1&budget=1", func(fr guestapi.Frame) {
			if fr.Type == guestapi.FrameGap {
				running = false
			}
			if fr.Type == guestapi.FrameStdout && running {
				early += len(fr.Payload)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		kept := append(bytes.Clone(want.Bytes()[:budget/4]), want.Bytes()[total-3*budget/4:]...)
		if early != budget/4 || !bytes.Equal(f.Stdout, kept) || string(f.Stderr) != "end\n" {
			t.Errorf("%d bytes before the gap, %d in all, stderr %q", early, len(f.Stdout), f.Stderr)
		}
		gap := guestapi.Gap{Stream: "stdout", From: budget / 4, To: int64(total - 3*budget/4)}
		if len(f.Gaps) != 1 || f.Gaps[0] != gap {
			t.Errorf("gaps %+v, want %+v", f.Gaps, gap)
		}
		for _, off := range []int{budget / 4, budget/4 + 1, total / 2} {
			f := c.Follow(t, s.ID, fmt.Sprintf("budget=1&stdout=%d", off))
			if !bytes.Equal(f.Stdout, kept[budget/4:]) || len(f.Gaps) != 1 || f.Gaps[0].From != int64(off) {
				t.Errorf("from %d: %d bytes, gaps %+v", off, len(f.Stdout), f.Gaps)
			}
		}
	})
	t.Run("wait=0 ends at once", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "echo now; sleep 60"})
		Eventually(t, 10*time.Second, "it has written", func() bool { return c.Status(t, s.ID).Stdout == 4 })
		if f := c.Follow(t, s.ID, ""); string(f.Stdout) != "now\n" || !f.End.Running || f.End.Result != nil {
			t.Errorf("%+v", f)
		}
	})
	t.Run("a slow reader blocks only itself", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "seq 1 300000"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		resp, err := c.do(ctx, "GET", path(s.ID, "/follow?wait=1"), nil) // whose body nobody reads
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if r := c.End(t, s.ID); r.End != hutch.ExecExit || r.Stdout.Total != 1988895 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("an offset past the end", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "echo out; echo err >&2"})
		f := c.Follow(t, s.ID, "wait=1&stdout=99999999&stderr=1")
		if len(f.Stdout) != 0 || string(f.Stderr) != "rr\n" || f.End.Result == nil {
			t.Errorf("got %q, %q, %+v", f.Stdout, f.Stderr, f.End)
		}
	})
	t.Run("deleted", func(t *testing.T) { c.followDeleted(t) })
	t.Run("a bad offset", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "true"})
		for _, q := range []string{"stdout=-1", "stderr=x", "budget=2", "wait=yes"} {
			if _, err := c.TryFollow(t.Context(), s.ID, q, nil); code(err) != hutch.CodeBadRequest {
				t.Errorf("%s: %v, want a bad_request", q, err)
			}
		}
	})
}

func testStartFollow(t *testing.T, c *Client, count string, want []byte) {
	id := NewID()
	start := guestapi.StartExec{ID: id, Spec: hutch.ExecSpec{Cmd: count + "; echo end >&2; exit 3", MaxOutputBytes: 10_000, Tag: "schön €"}}
	st, f, err := c.StartFollow(t.Context(), start, "wait=1&budget=1")
	if err != nil || st.ID != id || st.PID == 0 || !st.Running || st.Tag != start.Spec.Tag {
		t.Fatalf("started: %+v, %v", st, err)
	}
	t.Cleanup(func() { c.forget(t, id) })
	if len(f.Stdout) != 10_000 || !bytes.HasSuffix(f.Stdout, want[len(want)-7_000:]) || string(f.Stderr) != "end\n" || f.End.Result == nil || f.End.Result.ExitCode != 3 {
		t.Errorf("%d bytes, %q, %+v", len(f.Stdout), f.Stderr, f.End)
	}
	if st, f, err = c.StartFollow(t.Context(), start, "wait=1"); err != nil || st.ID != id || st.Result == nil || f.Stdout != nil {
		t.Errorf("one that has ended: %+v, %+v, %v", st, f, err)
	}
	start.ID = NewID()
	for _, query := range []string{"budget=2", "stdout=-1", "last=1", "live=1&budget=1", "live=1&stderr=1"} {
		if _, _, err := c.StartFollow(t.Context(), start, query); code(err) != hutch.CodeBadRequest {
			t.Errorf("with %s: %v", query, err)
		}
	}
	if err := c.Call(t.Context(), "GET", path(start.ID, ""), nil, nil); code(err) != hutch.CodeNotFound {
		t.Errorf("what was refused was started: %v", err)
	}
}

// followDeleted checks what is left of a command whose result is recorded elsewhere.
func (c *Client) followDeleted(t *testing.T) {
	big := c.Start(t, hutch.ExecSpec{Cmd: "seq 1 200000; echo small >&2", MaxOutputBytes: 1000})
	whole := c.Follow(t, big.ID, "wait=1")
	early := make(chan Followed, 1) // reads on while the command is deleted
	began := make(chan struct{})
	go func() {
		first := true
		f, err := c.TryFollow(t.Context(), big.ID, "wait=1", func(guestapi.Frame) {
			if first {
				first = false
				close(began)
			}
		})
		if err != nil {
			t.Errorf("follow: %v", err)
		}
		early <- f
	}()
	<-began
	c.must(t, "DELETE", path(big.ID, ""), nil, nil)
	if f := <-early; !bytes.Equal(f.Stdout, whole.Stdout) || len(f.Gaps) > 0 {
		t.Errorf("a reader from before got %d of %d bytes, gaps %v", len(f.Stdout), len(whole.Stdout), f.Gaps)
	}
	late := c.Follow(t, big.ID, "wait=1&stdout=5")
	if !bytes.Equal(late.Stdout, whole.Stdout[5:]) || string(late.Stderr) != "small\n" || len(late.Gaps) > 0 {
		t.Errorf("a reader from after got %d bytes, stderr %q, gaps %v", len(late.Stdout), late.Stderr, late.Gaps)
	}
	if r := late.End.Result; r == nil || len(r.Stdout.Head) != 250 || len(r.Stdout.Tail) != 750 {
		t.Errorf("its result is %+v", r)
	}
	for _, s := range c.list(t) {
		if s.ID == big.ID {
			t.Error("it is listed")
		}
	}

	small := c.Start(t, hutch.ExecSpec{Cmd: "echo hi"})
	c.End(t, small.ID)
	c.must(t, "DELETE", path(small.ID, ""), nil, nil)
	if _, err := c.TryFollow(t.Context(), small.ID, "wait=1", nil); code(err) != hutch.CodeNotFound {
		t.Errorf("one whose output was small: %v, want not_found", err)
	}

	parent := c.Start(t, hutch.ExecSpec{Cmd: "sleep 7654 & echo left"})
	if r := c.End(t, parent.ID); len(r.LeftRunning) != 1 {
		t.Fatalf("left running %+v", r.LeftRunning)
	}
	c.must(t, "DELETE", path(parent.ID, ""), nil, nil)
	if n := len(c.Processes(t, parent.ID)); n != 1 {
		t.Errorf("%d processes are left after the delete, want 1", n)
	}
	if st := c.Stop(t, parent.ID, guestapi.Stop{}); st.Result == nil || len(st.Result.Killed) != 1 {
		t.Errorf("stop: %+v", st.Result)
	}
	if n := len(c.Processes(t, parent.ID)); n != 0 {
		t.Errorf("%d processes are left after the stop", n)
	}
}

func (c *Client) list(t testing.TB) []guestapi.ExecStatus {
	t.Helper()
	var l guestapi.ExecList
	c.must(t, "GET", guestapi.PathExec, nil, &l)
	return l.Execs
}
