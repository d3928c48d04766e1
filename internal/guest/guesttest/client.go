package guesttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// Client calls a guest agent on behalf of a test: what must work and does not ends the
// test.
type Client struct {
	HTTP *http.Client
}

// Sandbox is who the tests say the sandbox is.
const Sandbox hutch.SandboxID = "i0123456789abcdefghij"

// begun is when the tests were begun. Epochs are told from it by the monotonic clock: a step
// of the wall clock, such as virtual machines see, must not make the next one an earlier one.
var begun = time.Now()

// Hello is a hello that is in order, each in a later epoch.
func Hello() guestapi.Hello {
	seed := make([]byte, 64)
	rand.Read(seed)
	return guestapi.Hello{
		Protocol: guestapi.ProtocolVersion, Sandbox: Sandbox, Epoch: hutch.Epoch(begun.UnixNano() + int64(time.Since(begun))), Hostname: "guest-test",
		Time: time.Now().UnixNano(), Seed: seed, CPUs: 2, Pids: 600, DiskMB: 1024,
	}
}

// Call makes one call, with in as its JSON body (nil: none) and the answer in out. A
// refusal is a *hutch.Error.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func (c *Client) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+path, body)
	if err != nil {
		return nil, err
	}
	return c.roundTrip(req)
}

func (c *Client) roundTrip(req *http.Request) (*http.Response, error) {
	method, path := req.Method, req.URL.Path
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		var e guestapi.Error
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			return nil, fmt.Errorf("%s %s: status %d without an error body: %w", method, path, resp.StatusCode, err)
		}
		return nil, &hutch.Error{Code: e.Code, Message: e.Error, Field: e.Field}
	}
	return resp, nil
}

func (c *Client) must(t testing.TB, method, path string, in, out any) {
	t.Helper()
	if err := c.Call(t.Context(), method, path, in, out); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
}

// NewID makes an id for a command.
func NewID() hutch.ExecID {
	return hutch.ExecID("e" + strings.ToLower(rand.Text()[:20]))
}

func path(id hutch.ExecID, more string) string { return guestapi.PathExec + "/" + string(id) + more }

// Start starts a command and forgets it when the test ends.
func (c *Client) Start(t testing.TB, spec hutch.ExecSpec) guestapi.ExecStatus {
	t.Helper()
	var s guestapi.ExecStatus
	id := NewID()
	c.must(t, "POST", guestapi.PathExec, guestapi.StartExec{ID: id, Spec: spec}, &s)
	t.Cleanup(func() { c.forget(t, id) })
	return s
}

// forget stops and deletes a command, if the test has not.
func (c *Client) forget(t testing.TB, id hutch.ExecID) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, err := range []error{
		c.Call(ctx, "POST", path(id, "/stop"), guestapi.Stop{}, nil),
		c.Call(ctx, "DELETE", path(id, ""), nil, nil),
	} {
		if err != nil && code(err) != hutch.CodeNotFound {
			t.Errorf("clean up command %s: %v", id, err)
		}
	}
}

// Refused starts a command that must be refused, and says how.
func (c *Client) Refused(t testing.TB, spec hutch.ExecSpec) *hutch.Error {
	t.Helper()
	var s guestapi.ExecStatus
	err := c.Call(t.Context(), "POST", guestapi.PathExec, guestapi.StartExec{ID: NewID(), Spec: spec}, &s)
	var e *hutch.Error
	if !errors.As(err, &e) {
		t.Fatalf("start of %+v: status %+v, error %v; want it refused", spec, s, err)
	}
	return e
}

// Run runs a command to its end.
func (c *Client) Run(t testing.TB, spec hutch.ExecSpec) hutch.ExecResult {
	t.Helper()
	return c.End(t, c.Start(t, spec).ID)
}

// Sh runs a shell command with a minute's time to its end.
func (c *Client) Sh(t testing.TB, cmd string) hutch.ExecResult {
	t.Helper()
	return c.Run(t, hutch.ExecSpec{Cmd: cmd, Timeout: time.Minute})
}

// End waits for a command's end.
func (c *Client) End(t testing.TB, id hutch.ExecID) hutch.ExecResult {
	t.Helper()
	f := c.Follow(t, id, "wait=1&budget=1")
	if f.End.Result == nil {
		t.Fatalf("the end frame of %s has no result: %+v", id, f.End)
	}
	return *f.End.Result
}

// Status is the state of a command.
func (c *Client) Status(t testing.TB, id hutch.ExecID) guestapi.ExecStatus {
	t.Helper()
	var s guestapi.ExecStatus
	c.must(t, "GET", path(id, ""), nil, &s)
	return s
}

// Stop stops a command.
func (c *Client) Stop(t testing.TB, id hutch.ExecID, s guestapi.Stop) guestapi.ExecStatus {
	t.Helper()
	var st guestapi.ExecStatus
	c.must(t, "POST", path(id, "/stop"), s, &st)
	return st
}

// Stdin sends input.
func (c *Client) Stdin(ctx context.Context, id hutch.ExecID, offset int64, r io.Reader, last bool) (guestapi.StdinReply, error) {
	q := url.Values{"offset": {fmt.Sprint(offset)}}
	if last {
		q.Set("close", "1")
	}
	resp, err := c.do(ctx, "POST", path(id, "/stdin?"+q.Encode()), r)
	if err != nil {
		return guestapi.StdinReply{}, err
	}
	defer resp.Body.Close()
	var reply guestapi.StdinReply
	err = json.NewDecoder(resp.Body).Decode(&reply)
	return reply, err
}

// Processes lists the processes inside, or those of one command.
func (c *Client) Processes(t testing.TB, id hutch.ExecID) []guestapi.Process {
	t.Helper()
	var l guestapi.ProcessList
	c.must(t, "GET", guestapi.PathProcesses, nil, &l)
	if id == "" {
		return l.Processes
	}
	var own []guestapi.Process
	for _, p := range l.Processes {
		if p.Exec == id && p.State != "Z" {
			own = append(own, p)
		}
	}
	return own
}

// Followed is what a follow answer held.
type Followed struct {
	Stdout, Stderr []byte
	Gaps           []guestapi.Gap
	End            guestapi.ExecStatus
	Keepalives     int
	LongestFrame   int
}

// Follow reads a follow answer to its end.
func (c *Client) Follow(t testing.TB, id hutch.ExecID, query string) Followed {
	t.Helper()
	f, err := c.TryFollow(t.Context(), id, query, nil)
	if err != nil {
		t.Fatalf("follow %s?%s: %v", id, query, err)
	}
	return f
}

// TryFollow reads a follow answer to its end and shows every frame to each, if it is not nil.
func (c *Client) TryFollow(ctx context.Context, id hutch.ExecID, query string, each func(guestapi.Frame)) (Followed, error) {
	resp, err := c.do(ctx, "GET", path(id, "/follow?"+query), nil)
	if err != nil {
		return Followed{}, err
	}
	defer resp.Body.Close()
	return readFollow(resp, each)
}

// StartFollow starts a command and follows it in one call. The follow is empty if the answer has
// none, and the status is the one that it began with.
func (c *Client) StartFollow(ctx context.Context, start guestapi.StartExec, query string) (st guestapi.ExecStatus, f Followed, err error) {
	body, err := json.Marshal(start)
	if err != nil {
		return st, f, err
	}
	resp, err := c.do(ctx, "POST", guestapi.PathExec+"?follow=1&"+query, bytes.NewReader(body))
	if err != nil {
		return st, f, err
	}
	defer resp.Body.Close()
	head := resp.Header.Get(guestapi.HeaderExec)
	if head == "" {
		return st, f, json.NewDecoder(resp.Body).Decode(&st)
	}
	b, err := base64.StdEncoding.DecodeString(head)
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	if err != nil {
		return st, f, fmt.Errorf("read header %q: %w", head, err)
	}
	f, err = readFollow(resp, nil)
	return st, f, err
}

func readFollow(resp *http.Response, each func(guestapi.Frame)) (f Followed, err error) {
	for {
		frame, err := guestapi.ReadFrame(resp.Body)
		if err != nil {
			return f, fmt.Errorf("read frame: %w", err)
		}
		if each != nil {
			each(frame)
		}
		switch frame.Type {
		case guestapi.FrameStdout:
			f.Stdout = append(f.Stdout, frame.Payload...)
			f.LongestFrame = max(f.LongestFrame, len(frame.Payload))
		case guestapi.FrameStderr:
			f.Stderr = append(f.Stderr, frame.Payload...)
			f.LongestFrame = max(f.LongestFrame, len(frame.Payload))
		case guestapi.FrameGap:
			var g guestapi.Gap
			if err := json.Unmarshal(frame.Payload, &g); err != nil {
				return f, fmt.Errorf("read gap: %w", err)
			}
			f.Gaps = append(f.Gaps, g)
		case guestapi.FrameKeepalive:
			f.Keepalives++
		case guestapi.FrameEnd:
			return f, json.Unmarshal(frame.Payload, &f.End)
		}
	}
}

// Eventually waits until ok holds, which it looks at every few milliseconds.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}
