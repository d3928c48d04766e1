package guesttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

func testAppend(t *testing.T, c *Client) {
	t.Run("several callers, each piece whole", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "cat", StdinOpen: true})
		var wg sync.WaitGroup
		for i := range 8 {
			line := strings.Repeat(fmt.Sprint(i), 9999) + "\n"
			wg.Go(func() {
				for range 10 {
					if err := c.appendInput(t.Context(), s.ID, line, false); err != nil {
						t.Errorf("append: %v", err)
					}
				}
			})
		}
		wg.Wait()
		if err := c.appendInput(t.Context(), s.ID, "", true); err != nil {
			t.Fatal(err)
		}
		f := c.Follow(t, s.ID, "wait=1")
		if len(f.Stdout) != 8*10*10000 {
			t.Errorf("%d bytes", len(f.Stdout))
		}
		for line := range bytes.Lines(f.Stdout) {
			if len(line) != 10000 || !bytes.Equal(bytes.Trim(line, string(line[0])), []byte("\n")) {
				t.Fatalf("a line of %d bytes that begins %.20q", len(line), line)
			}
		}
	})
	t.Run("one who leaves cuts off nobody else", func(t *testing.T) {
		c.Sh(t, "rm -f /tmp/append-go; mkfifo /tmp/append-go")
		s := c.Start(t, hutch.ExecSpec{Cmd: "read -r x < /tmp/append-go; tr -d y | wc -c", StdinOpen: true})
		big := strings.Repeat("x", guestapi.MaxInput)
		full := make(chan error, 1)
		go func() {
			var err error
			for range 8 { // more than a pipe holds
				if err = c.appendInput(t.Context(), s.ID, big, false); err != nil {
					break
				}
			}
			full <- err
		}()
		// Until the pipe is full whoever asks is served; from then on nobody is.
		left := false
		for range 1000 {
			short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			err := c.appendInput(short, s.ID, "y", false)
			cancel()
			if left = err != nil; left {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a caller who left: %v", err)
				}
				break
			}
		}
		if !left {
			t.Error("whoever asked was served: nobody had to leave")
		}
		c.Sh(t, "echo go > /tmp/append-go")
		if err := <-full; err != nil {
			t.Errorf("the one who stayed: %v", err)
		}
		if err := c.appendInput(t.Context(), s.ID, "", true); err != nil {
			t.Fatal(err)
		}
		if r := c.End(t, s.ID); strings.TrimSpace(string(r.Stdout.Head)) != fmt.Sprint(8*guestapi.MaxInput) {
			t.Errorf("%q bytes arrived", r.Stdout.Head)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "cat > /dev/null", StdinOpen: true})
		if err := c.appendInput(t.Context(), s.ID, strings.Repeat("x", guestapi.MaxInput+1), false); code(err) != hutch.CodeTooLarge {
			t.Errorf("a piece that is too large: %v", err)
		}
		if _, err := c.do(t.Context(), "POST", path(s.ID, "/stdin?append=1&offset=3"), strings.NewReader("x")); code(err) != hutch.CodeBadRequest { //nolint:bodyclose // an error has none
			t.Errorf("append with an offset: %v", err)
		}
		none := c.Start(t, hutch.ExecSpec{Cmd: "sleep 309"})
		if err := c.appendInput(t.Context(), none.ID, "x", false); code(err) != hutch.CodeInvalidState {
			t.Errorf("without stdin: %v", err)
		}
	})
}

func testLive(t *testing.T, c *Client) {
	t.Run("last bytes, as far as they are kept", func(t *testing.T) {
		for budget, want := range map[int]string{1 << 20: "6789\n", 64: "6789\n"} {
			s := c.Start(t, hutch.ExecSpec{Cmd: "seq 1 16789; echo err >&2", MaxOutputBytes: budget})
			c.End(t, s.ID)
			f := c.Follow(t, s.ID, "live=1&last=5&wait=1")
			if string(f.Stdout) != want || string(f.Stderr) != "err\n" || len(f.Gaps) != 1 || f.Gaps[0].From != 0 || f.Gaps[0].To != f.End.Stdout-5 {
				t.Errorf("budget %d: %q, %q, gaps %v of %d", budget, f.Stdout, f.Stderr, f.Gaps, f.End.Stdout)
			}
			if f := c.Follow(t, s.ID, "live=1&wait=1"); len(f.Stdout) != 0 || f.Gaps[0].To != f.End.Stdout {
				t.Errorf("budget %d, nothing of before: %q, gaps %v", budget, f.Stdout, f.Gaps)
			}
			if f := c.Follow(t, s.ID, "live=1&last=99999999"); int64(len(f.Stdout)) != f.End.Stdout || len(f.Gaps) != 0 {
				t.Errorf("budget %d, all: %d bytes, gaps %v", budget, len(f.Stdout), f.Gaps)
			}
		}
	})
	t.Run("refusals", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "true"})
		for _, q := range []string{"live=2", "live=1&last=-1", "last=4", "live=1&budget=1", "live=1&stdout=5"} {
			if _, err := c.TryFollow(t.Context(), s.ID, q, nil); code(err) != hutch.CodeBadRequest {
				t.Errorf("%s: %v, want a bad_request", q, err)
			}
		}
	})
}
