package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

func TestCaseA16TailIsNeverLost(t *testing.T) {
	runs := 1000
	if testing.Short() {
		runs = 100
	}
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	var wg sync.WaitGroup
	work := make(chan int)
	for range 4 {
		wg.Go(func() {
			for i := range work {
				cmd := `head -c 70000 /dev/zero | tr '\0' x`
				if i%20 == 0 { // many small writes instead of a few large ones, which takes far longer
					cmd = `printf 'x%.0s' $(seq 70000)`
				}
				res, err := s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Cmd: cmd})
				if err != nil {
					t.Error(err)
					continue
				}
				if len(res.Stdout) != 70_000 || res.ExitCode != 0 || strings.Trim(res.Stdout, "x") != "" {
					t.Errorf("got %d bytes, exit code %d", len(res.Stdout), res.ExitCode)
				}
			}
		})
	}
	for i := range runs {
		work <- i
	}
	close(work)
	wg.Wait()
}

// A hundred million bytes cost the server no more than the budget, and are whole inside.
func TestHugeOutputCostsTheBudgetOnly(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	before := s.peakRSS(t)
	res := s.run(t, sb.ID, `yes 'a line of forty-nine bytes, counted one by one..' | head -c 100000000`)
	if !res.Truncated || res.StdoutBytes != 100_000_000 || res.StdoutCut == nil {
		t.Fatalf("got %d bytes, truncated %v", res.StdoutBytes, res.Truncated)
	}
	if kept := res.StdoutCut.HeadBytes + res.StdoutCut.TailBytes; kept > hutch.DefaultOutputBytes || kept+res.DroppedBytes != 100_000_000 {
		t.Errorf("%d bytes kept, %d dropped", kept, res.DroppedBytes)
	}
	if want := strconv.FormatInt(res.DroppedBytes, 10); !strings.Contains(res.Stdout, want) || !strings.Contains(res.Stdout, res.OutputPath) {
		t.Error("the marker in the text does not name the bytes dropped and the file")
	}
	// The answer as text is as large as the budget, and is held a few times over while it
	// is decoded and encoded: what must not show is the hundred million.
	if grown := s.peakRSS(t) - before; grown > 48<<20 {
		t.Errorf("the server grew by %d MiB", grown>>20)
	}
	want := s.out(t, sb.ID, `yes 'a line of forty-nine bytes, counted one by one..' | head -c 100000000 | sha256sum`)
	if got := s.out(t, sb.ID, `sha256sum < `+res.OutputPath); got != want {
		t.Errorf("the file's hash is %s, want %s", got, want)
	}
}

// peakRSS is the most memory the server has had at once, in bytes.
func (s *server) peakRSS(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

func TestCaseD01MoreThanAnyMessageLimit(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	res := s.run(t, sb.ID, `head -c 40M /dev/zero | base64`)
	want := s.out(t, sb.ID, `head -c 40M /dev/zero | base64 | wc -c`)
	if got := strconv.FormatInt(res.StdoutBytes, 10); got != want || !res.Truncated || res.OutputPath == "" {
		t.Fatalf("got %s bytes, truncated %v, path %q; want %s bytes", got, res.Truncated, res.OutputPath, want)
	}
	if got := s.out(t, sb.ID, `wc -c < `+res.OutputPath); got != want {
		t.Errorf("the file has %s bytes, want %s", got, want)
	}
}

func TestCaseD03OneVeryLongLine(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	res := s.run(t, sb.ID, `head -c 5M /dev/zero | tr '\0' a`, budget(8<<20))
	if len(res.Stdout) != 5<<20 || res.Truncated || strings.Trim(res.Stdout, "a") != "" {
		t.Errorf("got %d bytes, truncated %v", len(res.Stdout), res.Truncated)
	}
}

func TestCaseD05CutsLieBetweenCharacters(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	for n := 100; n < 108; n++ {
		res := s.run(t, sb.ID, `for i in $(seq 200); do printf '🙂'; done`, budget(n))
		if !utf8.ValidString(res.Stdout) || strings.ContainsRune(res.Stdout, utf8.RuneError) || res.Lossy {
			t.Errorf("budget %d: a character was cut: %q", n, res.Stdout)
		}
		if c := res.StdoutCut; c == nil || c.HeadBytes+c.TailBytes > int64(n) || c.HeadBytes+c.TailBytes+c.DroppedBytes != 800 {
			t.Errorf("budget %d: got %+v, want at most the budget and a sum of 800", n, c)
		}
	}
}

func TestCaseD06TheBudgetIsInBytes(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	res := s.run(t, sb.ID, `for i in $(seq 1000); do printf 'é'; done`, budget(1000))
	if c := res.StdoutCut; c == nil || c.HeadBytes+c.TailBytes > 1000 || c.Bytes != 2000 || c.DroppedBytes < 1000 || c.DroppedBytes > 1004 {
		t.Errorf("got %+v", res.StdoutCut)
	}
}

func TestCaseD08BytesThatAreNotText(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	res := s.run(t, sb.ID, `printf '\377\376\000'`)
	if !res.Lossy || !bytes.Equal(res.StdoutBase64, []byte{0xff, 0xfe, 0}) || !utf8.ValidString(res.Stdout) {
		t.Errorf("got lossy %v, bytes %x, text %q", res.Lossy, res.StdoutBase64, res.Stdout)
	}
}

func TestCaseD10CompleteOrMarked(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	res := s.run(t, sb.ID, `seq 1 40000`)
	if res.Truncated || res.StdoutBytes != int64(len(res.Stdout)) || !strings.HasSuffix(res.Stdout, "40000\n") {
		t.Errorf("200 KB: got %d of %d bytes, truncated %v", len(res.Stdout), res.StdoutBytes, res.Truncated)
	}
}

func TestCaseD11ProgressBars(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	const cmd = `for i in $(seq 1000); do printf "\r$i%%"; done; echo`
	res := s.run(t, sb.ID, cmd, func(r *api.ExecRequest) { r.CollapseCR = true })
	if strings.TrimSpace(res.Stdout) != "1000%" {
		t.Errorf("collapsed: got %d bytes: %.60q", len(res.Stdout), res.Stdout)
	}
	raw := s.run(t, sb.ID, cmd)
	if strings.Count(raw.Stdout, "\r") != 1000 || raw.StdoutBytes != res.StdoutBytes {
		t.Errorf("the raw output has %d frames in %d bytes, the collapsed one counts %d", strings.Count(raw.Stdout, "\r"), raw.StdoutBytes, res.StdoutBytes)
	}
}

func TestCaseD13EveryByteAndOurOwnFraming(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	// All bytes, then what begins a control message on the stream to the guest (0xF5 0x01),
	// and what looks like an end frame, and like the end of an event.
	const script = `python3 -c 'import sys; w=sys.stdout.buffer.write
w(bytes(range(256))*4); w(b"\xf5\x01\xf5\xf5\x01"*300); w(b"\x04\0\0\0\2\0\0\0\0\0\0\0\0{}"); w(b"\n\nevent: exit\ndata: {\"exit_code\":0}\n\n"); sys.exit(9)'`
	want := bytes.Repeat(func() (b []byte) {
		for i := range 256 {
			b = append(b, byte(i))
		}
		return b
	}(), 4)
	want = append(want, bytes.Repeat([]byte("\xf5\x01\xf5\xf5\x01"), 300)...)
	want = append(want, "\x04\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00{}\n\nevent: exit\ndata: {\"exit_code\":0}\n\n"...)
	res := s.run(t, sb.ID, script)
	if res.ExitCode != 9 || !bytes.Equal(res.StdoutBase64, want) {
		t.Errorf("waited for: exit code %d, %d bytes, want 9 and %d", res.ExitCode, len(res.StdoutBase64), len(want))
	}
	var got []byte
	end, err := s.client.Stream(t.Context(), sb.ID, api.ExecRequest{Cmd: script}, client.StreamOptions{}, func(o client.Output) error {
		got = append(got, o.Data...)
		return nil
	})
	if err != nil || end.ExitCode != 9 || !bytes.Equal(got, want) {
		t.Errorf("streamed: %v, exit code %d, %d bytes", err, end.ExitCode, len(got))
	}
}

func TestReattachFromAnyOffset(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	id := s.background(t, sb.ID, `seq 1 300000; echo to stderr >&2`, budget(1000))
	s.ended(t, id)
	var whole bytes.Buffer
	for i := 1; i <= 300000; i++ {
		fmt.Fprintln(&whole, i)
	}
	for _, from := range []int64{0, 1, 250, 251, 999, 1_000_000, int64(whole.Len()) - 1, int64(whole.Len())} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			fmt.Sprintf("%s/v1/execs/%s/output?stream=stdout&offset=%d", s.base, id, from), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !bytes.Equal(got, whole.Bytes()[from:]) {
			t.Errorf("from %d: %v, status %d, %d bytes of %d", from, err, res.StatusCode, len(got), whole.Len()-int(from))
		}
	}
}

// A stream is kept alive while the command is silent, well within what balancers cut.
func TestCaseB10SilentStreamsAreKeptAlive(t *testing.T) {
	t.Parallel()
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	body, err := json.Marshal(api.ExecRequest{Cmd: `sleep 12; echo ok`})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.base+"/v1/sandboxes/"+string(sb.ID)+"/exec/stream", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	last, longest := time.Now(), time.Duration(0)
	var all []byte
	buf := make([]byte, 4096)
	for {
		n, err := res.Body.Read(buf)
		longest, last = max(longest, time.Since(last)), time.Now()
		all = append(all, buf[:n]...)
		if err != nil {
			break
		}
	}
	if longest > 10*time.Second {
		t.Errorf("the stream was silent for %v", longest)
	}
	if !bytes.Contains(all, []byte("ok")) || !bytes.Contains(all, []byte("event: exit")) {
		t.Errorf("the stream was %q", all)
	}
}

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
