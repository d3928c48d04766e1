package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

func TestCaseA18ForegroundThenRead(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	// Followed for a while in the foreground, left, and read again by its id.
	var id hutch.ExecID
	_, err := s.client.Stream(t.Context(), sb.ID, api.ExecRequest{Cmd: `for i in 1 2 3 4; do echo $i; sleep 0.3; done`},
		client.StreamOptions{Started: func(x hutch.ExecID) { id = x }}, func(client.Output) error { return errEnough })
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	var all []byte
	end, err := s.client.Follow(t.Context(), id, client.StreamOptions{}, func(o client.Output) error {
		all = append(all, o.Data...)
		return nil
	})
	if err != nil || string(all) != "1\n2\n3\n4\n" || end.EndReason != hutch.ExecExit {
		t.Errorf("got %v, %q, %s", err, all, end.EndReason)
	}
}

func TestCaseA20StdinIsNotWaitedFor(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	within(t, time.Second, "cat of nothing", func() {
		if res := s.run(t, sb.ID, `cat; cat /etc/hostname`); res.ExitCode != 0 || strings.TrimSpace(res.Stdout) != string(sb.ID) {
			t.Errorf("got %d, %q", res.ExitCode, res.Stdout)
		}
	})
	if out := s.out(t, sb.ID, `test -t 0 && echo a terminal; (: </dev/tty) 2>/dev/null || echo none`); out != "none" {
		t.Errorf("a command has a terminal: %q", out)
	}
}

func TestCaseB01BackgroundHasNoDeadline(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	id := s.background(t, sb.ID, `python3 -m http.server 8123`)
	x, err := s.client.ExecRecord(t.Context(), id)
	if err != nil || x.TimeoutSeconds != 0 || !x.Running {
		t.Fatalf("got %+v, %v; want it running without a timeout", x, err)
	}
	eventually(t, "its port answers", func() bool {
		return s.run(t, sb.ID, `curl -sf -o /dev/null http://127.0.0.1:8123/`).ExitCode == 0
	})
	if _, err := s.client.Cancel(t.Context(), id, nil); err != nil {
		t.Fatal(err)
	}
	if res := s.run(t, sb.ID, `curl -sf http://127.0.0.1:8123/`); res.ExitCode == 0 {
		t.Error("its port answers after the cancel")
	}
}

func TestCaseB03BackgroundChildDoesNotHoldTheCall(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	var res api.ExecResult
	within(t, time.Second, "the answer", func() { res = s.run(t, sb.ID, `sleep 3030 & echo started`) })
	if res.Stdout != "started\n" || len(res.LeftRunning) != 1 || res.LeftRunning[0].Command != "sleep" {
		t.Fatalf("got %q, left running %+v", res.Stdout, res.LeftRunning)
	}
	if n := s.alive(t, sb.ID, "sleep 3030"); n != 1 {
		t.Errorf("%d of the child are alive, want 1: it is kept", n)
	}
	if _, err := s.client.Cancel(t.Context(), res.ExecID, nil); err != nil {
		t.Fatal(err)
	}
	if n := s.alive(t, sb.ID, "sleep 3030"); n != 0 {
		t.Errorf("%d of the child are alive after its command was cancelled", n)
	}
}

func TestCaseB06Heredoc(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	res := s.run(t, sb.ID, "python3 - <<'PY'\nimport time; time.sleep(1); print('x')\nPY\n")
	if res.Stdout != "x\n" || res.ExitCode != 0 {
		t.Errorf("got %q, %d", res.Stdout, res.ExitCode)
	}
	within(t, 2*time.Second, "a heredoc without an end", func() {
		s.run(t, sb.ID, "cat <<EOF\nno end", timeout(2))
	})
	if out := s.out(t, sb.ID, `echo ok`); out != "ok" {
		t.Errorf("the command after it: %q", out)
	}
}

func TestCaseB08StreamEndsWithTheSandbox(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	type ending struct {
		end api.ExecEnd
		err error
	}
	ended, began := make(chan ending, 1), make(chan struct{})
	go func() {
		first := true
		end, err := s.client.Stream(t.Context(), sb.ID, api.ExecRequest{Cmd: `echo up; sleep 1000`}, client.StreamOptions{}, func(client.Output) error {
			if first {
				close(began)
				first = false
			}
			return nil
		})
		ended <- ending{end, err}
	}()
	received(t, "the stream has begun", began)
	s.killSentry(t, sb.ID)
	within(t, 5*time.Second, "the stream's end", func() {
		e := received(t, "the stream has ended", ended)
		if e.err != nil || e.end.EndReason != hutch.ExecSandboxGone {
			t.Errorf("got %v, %+v; want sandbox_gone", e.err, e.end)
		}
	})
	eventually(t, "the sandbox is on record as crashed", func() bool {
		_, err := s.client.Sandbox(t.Context(), sb.ID)
		return errors.Is(err, hutch.ErrSandboxGone) && strings.Contains(err.Error(), string(hutch.EndCrashed))
	})
}

// killSentry ends a sandbox's kernel from the host, as a crash of it would.
func (s *server) killSentry(t *testing.T, id hutch.SandboxID) {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil || !bytes.HasPrefix(b, []byte("runsc-sandbox")) || !bytes.Contains(b, []byte(id)) || !bytes.Contains(b, []byte(s.dir)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no kernel of %s on this host", id)
}

func TestCaseB11LargeStdin(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	data := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	x, err := s.client.StartExec(t.Context(), sb.ID, api.ExecRequest{Cmd: `sha256sum`, StdinOpen: true})
	if err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(data); { // in uneven pieces, the last of which closes it
		n := min(3<<20+7, len(data)-off)
		rep, err := s.client.WriteStdin(t.Context(), x.ExecID, int64(off), bytes.NewReader(data[off:off+n]), off+n == len(data))
		if err != nil {
			t.Fatal(err)
		}
		if rep.Offset != int64(off+n) {
			t.Fatalf("after %d bytes it has been given %d", off+n, rep.Offset)
		}
		off += n
	}
	if got := s.ended(t, x.ExecID).Result.Stdout; !strings.HasPrefix(got, sha(data)) {
		t.Errorf("got %q, want %s", got, sha(data))
	}
	text := strings.Repeat("all at once ", 20000)
	if out := s.out(t, sb.ID, `wc -c`, func(r *api.ExecRequest) { r.Stdin = &text }); out != strconv.Itoa(len(text)) {
		t.Errorf("stdin in the request: %s bytes arrived, want %d", out, len(text))
	}
}

func TestCaseB13ARunningCommandIsActivity(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{IdleTimeoutSeconds: ptr(2.0)})
	if res := s.run(t, sb.ID, `sleep 7; echo ok`); res.Stdout != "ok\n" {
		t.Fatalf("got %q, %s", res.Stdout, res.EndReason)
	}
	eventually(t, "it has idled away", func() bool {
		_, err := s.client.Sandbox(t.Context(), sb.ID)
		return errors.Is(err, hutch.ErrSandboxGone) && strings.Contains(err.Error(), string(hutch.EndIdle))
	})
}

func TestCaseB15NobodyReads(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	id := s.background(t, sb.ID, `yes | head -c 200M`)
	x := s.ended(t, id)
	if x.Result.StdoutBytes != 200<<20 || x.Result.ExitCode != 0 {
		t.Errorf("got %d bytes, exit code %d", x.Result.StdoutBytes, x.Result.ExitCode)
	}
}

func TestCaseB21EndedMeansEnded(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	id := s.background(t, sb.ID, `true`)
	if x := s.ended(t, id); x.Running || x.Result.ExitCode != 0 || x.Result.EndReason != hutch.ExecExit {
		t.Errorf("got %+v", x)
	}
}
