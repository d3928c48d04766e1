package guesttest

import (
	"context"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

func testModes(t *testing.T, c *Client) {
	t.Run("login", func(t *testing.T) {
		c.needBash(t)
		c.Sh(t, "mkdir -p /tmp/login; echo 'export FROM_PROFILE=yes' > /tmp/login/.bash_profile")
		r := c.Run(t, hutch.ExecSpec{Cmd: `echo $FROM_PROFILE $0; shopt -q login_shell && echo login`, Login: true, Env: map[string]string{"HOME": "/tmp/login"}})
		if string(r.Stdout.Head) != "yes /bin/bash\nlogin\n" || r.ExitCode != 0 {
			t.Errorf("%+v", r)
		}
		if e := c.Refused(t, hutch.ExecSpec{Argv: []string{"true"}, Login: true}); e.Field != "login" {
			t.Errorf("login without cmd: %v", e)
		}
	})
	t.Run("tag", func(t *testing.T) {
		for _, tag := range []string{"build", "ünï 🙂", strings.Repeat("ü", 64)} {
			s := c.Start(t, hutch.ExecSpec{Cmd: "true", Tag: tag})
			listed := false
			for _, l := range c.list(t) {
				listed = listed || l.ID == s.ID && l.Tag == tag
			}
			if s.Tag != tag || c.Status(t, s.ID).Tag != tag || !listed {
				t.Errorf("%q: started as %q, listed %v", tag, s.Tag, listed)
			}
		}
		for _, tag := range []string{strings.Repeat("x", 65), "a\nb", "\u202e"} {
			if e := c.Refused(t, hutch.ExecSpec{Cmd: "true", Tag: tag}); e.Field != "tag" {
				t.Errorf("tag %q: %v", tag, e)
			}
		}
	})
}

func testLossless(t *testing.T, c *Client) {
	small, usual := Hello(), Hello()
	small.DiskMB = 1 // so that a file holds next to nothing
	c.must(t, "POST", guestapi.PathHello, small, nil)
	t.Cleanup(func() {
		usual.Epoch = small.Epoch + 1
		if err := c.Call(context.WithoutCancel(t.Context()), "POST", guestapi.PathHello, usual, nil); err != nil {
			t.Error(err)
		}
	})
	const total = 40_000_000
	write := hutch.ExecSpec{Cmd: "yes 0123456789abcde | head -c 40000000; echo over >&2", Lossless: true, MaxOutputBytes: 10_000}

	t.Run("a slow reader gets every byte", func(t *testing.T) {
		// It begins once it has a reader: what is lost before that nobody was promised.
		begun := write
		begun.Cmd, begun.StdinOpen = "echo ready; read -r go; yes 0123456789abcde | head -c 39999994; echo over >&2", true
		s := c.Start(t, begun)
		first, waits := true, false
		f, err := c.TryFollow(t.Context(), s.ID, "wait=1", func(guestapi.Frame) {
			if !first {
				return
			}
			first = false
			if _, err := c.Stdin(t.Context(), s.ID, 0, strings.NewReader("go\n"), true); err != nil {
				t.Error(err)
			}
			before := int64(-1)
			Eventually(t, 30*time.Second, "the command stands still", func() bool {
				select {
				case <-time.After(200 * time.Millisecond):
				case <-t.Context().Done():
				}
				now := c.Status(t, s.ID).Stdout
				waits = now == before && now < total
				before = now
				return waits || now == total
			})
		})
		if err != nil || !waits || len(f.Stdout) != total || len(f.Gaps) != 0 || string(f.Stderr) != "over\n" || f.End.Result.ExitCode != 0 {
			t.Errorf("waited %v, %d bytes, gaps %v, %+v, %v", waits, len(f.Stdout), f.Gaps, f.End.Result, err)
		}
	})
	t.Run("one who leaves is waited for no more, and nobody at all never", func(t *testing.T) {
		for _, read := range []bool{true, false} {
			s := c.Start(t, write)
			if read {
				ctx, cancel := context.WithCancel(t.Context())
				_, err := c.TryFollow(ctx, s.ID, "wait=1", func(guestapi.Frame) { cancel() })
				if err == nil {
					t.Error("followed to the end")
				}
			}
			if r := c.End(t, s.ID); r.ExitCode != 0 || r.Stdout.Total != total {
				t.Errorf("%+v", r)
			}
		}
	})
	t.Run("a stop does not wait for a reader", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "yes", Lossless: true, MaxOutputBytes: 10_000, NoOutputTimeout: 300 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		resp, err := c.do(ctx, "GET", path(s.ID, "/follow?wait=1"), nil) // whose body nobody reads
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		before := int64(-1)
		Eventually(t, 30*time.Second, "the command stands still, longer than it may be silent", func() bool {
			<-time.After(500 * time.Millisecond)
			now := c.Status(t, s.ID).Stdout
			still := now == before
			before = now
			return still
		})
		begin := time.Now()
		st := c.Stop(t, s.ID, guestapi.Stop{Grace: int64(time.Second)})
		if within(t, begin, 2*time.Second); st.Result.End != hutch.ExecCancelled {
			t.Errorf("%+v", st.Result)
		}
	})
}
