package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sentryThat serves one call on a socket with what behave does, and returns its path.
func sentryThat(t *testing.T, behave func(*net.UnixConn)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gv") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		behave(c)
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		os.RemoveAll(dir)
	})
	return path
}

func TestCallAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   string // in the error; empty for none
	}{
		"success":     {answer: `{"success":true,"err":"","result":42}`},
		"refusal":     {answer: `{"success":false,"err":"no such thing"}`, want: "sentry: no such thing"},
		"long errors": {answer: `{"success":false,"err":"` + strings.Repeat("x", 100_000) + `"}`, want: "xxx"},
		"not JSON":    {answer: `hello`, want: "read answer"},
		"cut short":   {answer: `{"success":tr`, want: "read answer"},
		"nothing":     {answer: ``, want: "read answer"},
		"other type":  {answer: `{"success":true,"result":"forty-two"}`, want: "decode answer"},
	} {
		path := sentryThat(t, func(conn *net.UnixConn) {
			var r request
			_ = json.NewDecoder(conn).Decode(&r)
			_, _ = io.WriteString(conn, c.answer)
		})
		var got int
		err := call{method: "m", arg: 1, limit: 5 * time.Second, result: &got}.do(t.Context(), path)
		switch {
		case c.want == "" && (err != nil || got != 42):
			t.Errorf("%s: got %d, %v", name, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 2*maxErrText):
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		}
	}
}

// An answer without end must not be read without end.
func TestCallBoundsTheAnswer(t *testing.T) {
	sent := make(chan int, 1)
	path := sentryThat(t, func(conn *net.UnixConn) {
		n, chunk := 0, []byte(strings.Repeat("[", 64<<10))
		for {
			k, err := conn.Write(chunk)
			n += k
			if err != nil {
				sent <- n
				return
			}
		}
	})
	if err := (call{method: "m", limit: 30 * time.Second}).do(t.Context(), path); err == nil {
		t.Fatal("an endless answer was taken")
	}
	if n := <-sent; n > 4*maxAnswer {
		t.Errorf("%d bytes were taken", n)
	}
}

func TestCallEndsInTime(t *testing.T) {
	silent := func(conn *net.UnixConn) { _, _ = io.Copy(io.Discard, conn) }
	begun := time.Now()
	err := call{method: "m", limit: 50 * time.Millisecond}.do(t.Context(), sentryThat(t, silent))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("call of a silent sentry: %v", err)
	}
	why := errors.New("client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	if err := (call{method: "m", limit: time.Minute}).do(ctx, sentryThat(t, silent)); !errors.Is(err, why) {
		t.Errorf("call given up: %v", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("giving up took %v", took)
	}
}

// Files go with the call, and none come back.
func TestCallPassesFiles(t *testing.T) {
	file, err := os.Open("call_test.go")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got := make(chan int, 1)
	path := sentryThat(t, func(conn *net.UnixConn) {
		buf, oob := make([]byte, 4096), make([]byte, 256)
		_, n, _, _, err := conn.ReadMsgUnix(buf, oob)
		if err != nil {
			got <- -1
			return
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(msgs) != 1 {
			got <- -1
			return
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil {
			got <- -1
			return
		}
		got <- len(fds)
		// Hand them all back: a sentry that means harm could send any number.
		_, _, _ = conn.WriteMsgUnix([]byte(`{"success":true}`), unix.UnixRights(fds...), nil)
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	before := countFiles(t)
	if err := (call{method: "m", files: []*os.File{file, file}, limit: 5 * time.Second}).do(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if n := <-got; n != 2 {
		t.Errorf("%d files arrived, want 2", n)
	}
	until(t, "no more files than before", func() bool { return countFiles(t) <= before })
}

// FuzzAnswer feeds the decoder what a hostile sentry could send.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{`{"success":true}`, `{"success":false,"err":"x"}`, `{"success":true,"result":[1,2]}`, `null`, `[[[[`, "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var result struct{ PID int }
		_ = call{method: "m", result: &result}.receive(strings.NewReader(string(data)))
	})
}
