package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

// callEnv makes the test binary a client that sends one request.
const callEnv = "HUTCH_TEST_CALL"

// oneCall is a request, and what it needs to be sent.
type oneCall struct {
	Method string
	URL    string
	Header map[string]string
	Body   []byte
	Stdin  bool // the body goes on with what comes on stdin
}

// process is a client that runs.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	log    *syncBuffer
}

func startClient(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, log: &syncBuffer{}}
	cmd.Stderr = p.log
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if p.stdout, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // it was killed
	}
}

// read returns the next n bytes that it prints.
func (p *process) read(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(p.stdout, b); err != nil {
		t.Fatalf("the client printed no more: %v\n%s", err, p.log)
	}
	return b
}

// startHutch starts a command of the command line.
func (s *server) startHutch(t *testing.T, args ...string) *process {
	t.Helper()
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), "HUTCH_API_URL="+s.base, "HUTCH_API_KEY="+s.key)
	return startClient(t, cmd)
}

// startCall starts a process that makes a call.
func startCall(t *testing.T, c oneCall) *process {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCallInAProcess$")
	cmd.Env = append(os.Environ(), callEnv+"="+string(b))
	return startClient(t, cmd)
}

// TestCallInAProcess is the body of that process; alone it calls a server of its own.
func TestCallInAProcess(t *testing.T) {
	var c oneCall
	if text := os.Getenv(callEnv); text != "" {
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if err := c.send(t.Context(), os.Stdin, os.Stdout); err != nil {
			t.Fatal(err)
		}
		return
	}
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer echo.Close()
	var out bytes.Buffer
	c = oneCall{Method: http.MethodPost, URL: echo.URL, Body: []byte("so "), Stdin: true}
	if err := c.send(t.Context(), strings.NewReader("far"), &out); err != nil || out.String() != "so far" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func (c oneCall) send(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	body := io.Reader(bytes.NewReader(c.Body))
	if c.Stdin {
		body = io.MultiReader(body, stdin)
	}
	req, err := http.NewRequestWithContext(ctx, c.Method, c.URL, body)
	if err != nil {
		return err
	}
	for k, v := range c.Header {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(stdout, res.Body)
	return err
}

// agentCall is a call of the agent of a sandbox as E2B's clients make it.
func (s *server) agentCall(t *testing.T, sb hutch.SandboxID, path, contentType string) oneCall {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.base+"/v2/sandboxes/"+string(sb)+"/connect", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-KEY", s.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var v struct {
		Token string `json:"envdAccessToken"`
	}
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil || v.Token == "" {
		t.Fatalf("connect: %s, %v", res.Status, err)
	}
	return oneCall{Method: http.MethodPost, URL: s.base + path, Header: map[string]string{
		"E2b-Sandbox-Id": string(sb), "E2b-Sandbox-Port": "49983", "X-Access-Token": v.Token, "Content-Type": contentType, "Connect-Protocol-Version": "1",
	}}
}

// frame reads a frame of a stream that a client prints.
func frame(t *testing.T, p *process) string {
	t.Helper()
	head := p.read(t, 5)
	return string(p.read(t, int(binary.BigEndian.Uint32(head[1:]))))
}
