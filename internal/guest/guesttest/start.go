package guesttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

func code(err error) hutch.Code {
	var e *hutch.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func testHello(t *testing.T, dial func(t *testing.T) *Client) {
	c := dial(t)
	ctx := t.Context()
	for _, call := range [][2]string{
		{"GET", guestapi.PathHealth},
		{"POST", guestapi.PathExec},
		{"GET", guestapi.PathExec},
		{"GET", guestapi.PathProcesses},
		{"POST", guestapi.PathRelieve},
		{"GET", "/v1/nothing"},
	} {
		if err := c.Call(ctx, call[0], call[1], nil, nil); code(err) != guestapi.CodeNotIdentified {
			t.Errorf("%s %s before hello: %v, want not_identified", call[0], call[1], err)
		}
	}
	for field, h := range map[string]func(*guestapi.Hello){
		"protocol": func(h *guestapi.Hello) { h.Protocol = 99 },
		"sandbox":  func(h *guestapi.Hello) { h.Sandbox = "" },
		"hostname": func(h *guestapi.Hello) { h.Hostname = "a b" },
		"seed":     func(h *guestapi.Hello) { h.Seed = nil },
		"time":     func(h *guestapi.Hello) { h.Time = 0 },
		"env":      func(h *guestapi.Hello) { h.Env = map[string]string{"A=B": ""} },
	} {
		bad := Hello()
		h(&bad)
		var e *hutch.Error
		if err := c.Call(ctx, "POST", guestapi.PathHello, bad, nil); !errors.As(err, &e) || e.Field != field {
			t.Errorf("hello with a bad %s: %v, want an error about it", field, err)
		}
	}
	if err := c.Call(ctx, "GET", guestapi.PathHealth, nil, nil); code(err) != guestapi.CodeNotIdentified {
		t.Errorf("health after refused hellos: %v, want not_identified", err)
	}
	h := Hello()
	h.Env = map[string]string{"FROM_HELLO": "yes"}
	var reply guestapi.HelloReply
	c.must(t, "POST", guestapi.PathHello, h, &reply)
	if reply.Protocol != guestapi.ProtocolVersion || reply.BootNS <= 0 {
		t.Errorf("reply %+v", reply)
	}
	if r := c.Sh(t, "hostname; echo $FROM_HELLO; cat /etc/hostname"); string(r.Stdout.Head) != "guest-test\nyes\nguest-test\n" {
		t.Errorf("name and environment inside: %q", r.Stdout.Head)
	}
	if r := c.Sh(t, "grep -c 'guest-test$' /etc/hosts; wc -c < /etc/machine-id"); strings.Join(strings.Fields(string(r.Stdout.Head)), " ") != "1 33" {
		t.Errorf("hosts and machine-id: %q", r.Stdout.Head)
	}
	h.Epoch--
	if err := c.Call(ctx, "POST", guestapi.PathHello, h, nil); code(err) != hutch.CodeStale {
		t.Errorf("hello of an older epoch: %v, want stale", err)
	}
	other := dial(t)
	if err := other.Call(ctx, "GET", guestapi.PathHealth, nil, nil); code(err) != guestapi.CodeNotIdentified {
		t.Errorf("health on a new session: %v, want not_identified", err)
	}
}

func testStart(t *testing.T, c *Client) {
	t.Run("same id starts once", func(t *testing.T) {
		id := NewID()
		start := guestapi.StartExec{ID: id, Spec: hutch.ExecSpec{Cmd: "echo once", Timeout: time.Minute}}
		var wg sync.WaitGroup
		var mu sync.Mutex
		pids := map[int]bool{}
		for range 8 {
			wg.Go(func() {
				var s guestapi.ExecStatus
				if err := c.Call(t.Context(), "POST", guestapi.PathExec, start, &s); err != nil {
					t.Errorf("start: %v", err)
				}
				mu.Lock()
				pids[s.PID] = true
				mu.Unlock()
			})
		}
		wg.Wait()
		if len(pids) != 1 {
			t.Errorf("pids %v, want one", pids)
		}
		if r := c.End(t, id); string(r.Stdout.Head) != "once\n" {
			t.Errorf("output %q", r.Stdout.Head)
		}
		c.must(t, "DELETE", path(id, ""), nil, nil)
		if err := c.Call(t.Context(), "GET", path(id, ""), nil, nil); code(err) != hutch.CodeNotFound {
			t.Errorf("status after delete: %v, want not_found", err)
		}
	})
	t.Run("argv needs no shell", func(t *testing.T) {
		r := c.Run(t, hutch.ExecSpec{Argv: []string{"printf", "%s|", "$HOME", "a b", ""}, Timeout: time.Minute})
		if string(r.Stdout.Head) != "$HOME|a b||" {
			t.Errorf("output %q", r.Stdout.Head)
		}
	})
	t.Run("program by the command's PATH", func(t *testing.T) {
		c.Sh(t, "mkdir -p /tmp/p1 /tmp/p2; echo no > /tmp/p1/prog; printf '#!/bin/sh\\necho mine' > /tmp/p2/prog; chmod 755 /tmp/p2/prog")
		r := c.Run(t, hutch.ExecSpec{Argv: []string{"prog"}, Env: map[string]string{"PATH": "/nowhere:/tmp/p1:/tmp/p2:/bin"}})
		if string(r.Stdout.Head) != "mine\n" {
			t.Errorf("result %+v", r)
		}
	})
	t.Run("programs that cannot run", func(t *testing.T) {
		c.Sh(t, "echo text > /tmp/plain; printf '#!/no/such/thing\\n' > /tmp/orphan; head -c 100 /dev/zero > /tmp/zero; chmod 755 /tmp/orphan /tmp/zero")
		for program, want := range map[string]struct {
			code int
			says string
		}{
			"no-such-program":   {127, "not found"},
			"/no/such/program":  {127, "not found"},
			"/tmp/orphan":       {127, "interpreter"},
			"/tmp/plain":        {126, "permission denied"},
			"/tmp":              {126, "permission denied"},
			"/tmp/zero":         {126, "not a program"},
			"/etc/passwd/nodir": {127, "not found"},
		} {
			r := c.Run(t, hutch.ExecSpec{Argv: []string{program}})
			if r.End != hutch.ExecExit || r.ExitCode != want.code || !strings.Contains(string(r.Stderr.Head), want.says) {
				t.Errorf("%s: %s %d %q; want %d, %q", program, r.End, r.ExitCode, r.Stderr.Head, want.code, want.says)
			}
		}
	})
	t.Run("B21 a short command is finished at once", func(t *testing.T) {
		for range 20 {
			s := c.Start(t, hutch.ExecSpec{Argv: []string{"true"}, Background: true})
			Eventually(t, 10*time.Second, "true has ended", func() bool { return !c.Status(t, s.ID).Running })
			if r := c.Status(t, s.ID).Result; r.End != hutch.ExecExit || r.ExitCode != 0 {
				t.Fatalf("result %+v", r)
			}
		}
	})
	t.Run("A20 stdin is empty and there is no terminal", func(t *testing.T) {
		begin := time.Now()
		r := c.Sh(t, "cat; (exec < /dev/tty) 2>/dev/null || echo no tty; readlink /proc/self/fd/0")
		if string(r.Stdout.Head) != "no tty\n/dev/null\n" || time.Since(begin) > 5*time.Second {
			t.Errorf("%q after %s", r.Stdout.Head, time.Since(begin))
		}
	})
	t.Run("no descriptor is inherited", func(t *testing.T) {
		if r := c.Sh(t, "ls /proc/$$/fd"); strings.Join(strings.Fields(string(r.Stdout.Head)), " ") != "0 1 2" {
			t.Errorf("descriptors %q", r.Stdout.Head)
		}
	})
}

func testEnv(t *testing.T, c *Client) {
	h := Hello()
	h.Env = map[string]string{"LAYER": "sandbox", "HELLO": "1", "LANG": "de_DE.UTF-8"}
	h.Defaults.Env = map[string]string{"LAYER": "template", "TEMPLATE": "1", "HELLO": "0"}
	c.must(t, "POST", guestapi.PathHello, h, nil)
	t.Cleanup(func() { _ = c.Call(context.WithoutCancel(t.Context()), "POST", guestapi.PathHello, Hello(), nil) })

	environ := func(spec hutch.ExecSpec) map[string]string {
		spec.Argv = []string{"env"}
		env := map[string]string{}
		for line := range strings.Lines(string(c.Run(t, spec).Stdout.Head)) {
			k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			env[k] = v
		}
		return env
	}
	t.Run("F-env only documented names, by precedence", func(t *testing.T) {
		env := environ(hutch.ExecSpec{Cwd: "/tmp", Env: map[string]string{"TERM": "xterm", "MINE": "ü=1"}})
		if env["HUTCH_EXEC_ID"] == "" {
			t.Error("HUTCH_EXEC_ID is not set")
		}
		delete(env, "HUTCH_EXEC_ID")
		want := map[string]string{
			"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": env["SHELL"], "PWD": "/tmp",
			"LANG": "de_DE.UTF-8", "TERM": "xterm", "DEBIAN_FRONTEND": "noninteractive",
			"LAYER": "sandbox", "HELLO": "1", "TEMPLATE": "1", "MINE": "ü=1",
		}
		if fmt.Sprint(env) != fmt.Sprint(want) {
			t.Errorf("environment\n%v, want\n%v", env, want)
		}
	})
	t.Run("the request wins", func(t *testing.T) {
		env := environ(hutch.ExecSpec{Env: map[string]string{"LAYER": "request", "HOME": "/elsewhere"}})
		if env["LAYER"] != "request" || env["HOME"] != "/elsewhere" {
			t.Errorf("environment %v", env)
		}
	})
}

func testUser(t *testing.T, c *Client) {
	c.Sh(t, `grep -q ^tester: /etc/passwd || { echo tester:x:4321:4322::/home/tester:/bin/sh >> /etc/passwd; echo testers:x:4323:tester >> /etc/group; }
		mkdir -p /home/tester && chown 4321:4322 /home/tester`)
	const who = `echo "$(id -u):$(id -g):$(id -G) $HOME $USER $(pwd)"`
	for user, want := range map[string]string{
		"":               "0:0:0 /root root",
		"tester":         "4321:4322:4322 4323 /home/tester tester /home/tester\n",
		"4321":           "4321:4322:4322 4323 /home/tester tester /home/tester\n",
		"tester:testers": "4321:4323:4323 /home/tester tester /home/tester\n",
		"5555:6666":      "5555:6666:6666 / 5555 /\n",
	} {
		r := c.Run(t, hutch.ExecSpec{Cmd: who, User: user})
		if got := string(r.Stdout.Head); !strings.HasPrefix(got, want) {
			t.Errorf("user %q: %q (%s), want %q", user, got, r.Stderr.Head, want)
		}
	}
	if e := c.Refused(t, hutch.ExecSpec{Cmd: "true", User: "nobody-of-that-name"}); e.Code != hutch.CodeBadRequest || e.Field != "user" {
		t.Errorf("unknown user: %v", e)
	}
	c.Sh(t, "mkdir -p /tmp/rootonly && chmod 700 /tmp/rootonly")
	if e := c.Refused(t, hutch.ExecSpec{Cmd: "true", User: "tester", Cwd: "/tmp/rootonly"}); e.Code != hutch.CodeBadRequest || e.Field != "cwd" {
		t.Errorf("a directory the user may not enter: %v", e)
	}
	c.Sh(t, "cp /bin/true /tmp/rootprog; chmod 700 /tmp/rootprog")
	if r := c.Run(t, hutch.ExecSpec{Argv: []string{"/tmp/rootprog"}, User: "tester"}); r.ExitCode != 126 {
		t.Errorf("a program the user may not run: %+v", r)
	}
}

func testCwd(t *testing.T, c *Client) {
	for cwd, want := range map[string]string{"/tmp": "/tmp\n", "/usr/../tmp/.": "/tmp\n"} {
		if r := c.Run(t, hutch.ExecSpec{Cmd: "pwd -P", Cwd: cwd}); string(r.Stdout.Head) != want {
			t.Errorf("cwd %q: %q, want %q", cwd, r.Stdout.Head, want)
		}
	}
	c.Sh(t, "mkdir -p /root/rel")
	if r := c.Run(t, hutch.ExecSpec{Cmd: "pwd", Cwd: "rel"}); string(r.Stdout.Head) != "/root/rel\n" {
		t.Errorf("a relative cwd: %q", r.Stdout.Head)
	}
	for _, cwd := range []string{"/no/such/dir", "/etc/passwd", "/etc/passwd/x"} {
		if e := c.Refused(t, hutch.ExecSpec{Cmd: "true", Cwd: cwd}); e.Code != hutch.CodeBadRequest || e.Field != "cwd" {
			t.Errorf("cwd %q: %v, want a bad_request about cwd", cwd, e)
		}
	}
}

func testRefusals(t *testing.T, c *Client) {
	for field, spec := range map[string]hutch.ExecSpec{
		"cmd":               {},
		"argv":              {Cmd: "true", Argv: []string{"true"}},
		"timeout":           {Cmd: "true", Timeout: -1},
		"no_output_timeout": {Cmd: "true", NoOutputTimeout: -1},
		"grace":             {Cmd: "true", Grace: time.Hour},
		"max_output_bytes":  {Cmd: "true", MaxOutputBytes: 1},
		"env":               {Cmd: "true", Env: map[string]string{"HUTCH_EXEC_ID": "x"}},
	} {
		if e := c.Refused(t, spec); e.Code != hutch.CodeBadRequest || e.Field != field {
			t.Errorf("%+v: %v, want a bad_request about %s", spec, e, field)
		}
	}
	long := strings.Repeat("x", 128<<10)
	many := slices.Repeat([]string{long[:64<<10]}, 40)
	for field, spec := range map[string]hutch.ExecSpec{
		"argv": {Argv: []string{"true", long}}, "cmd": {Cmd: long}, "env": {Cmd: "true", Env: map[string]string{"A": long}},
	} {
		if e := c.Refused(t, spec); e.Code != hutch.CodeBadRequest || e.Field != field {
			t.Errorf("128 KiB in %s: %v", field, e)
		}
	}
	if e := c.Refused(t, hutch.ExecSpec{Argv: append([]string{"true"}, many...)}); e.Field != "argv" {
		t.Errorf("arguments of 2.5 MiB: %v", e)
	}
	if r := c.Run(t, hutch.ExecSpec{Argv: append([]string{"true"}, many[:20]...)}); r.ExitCode != 0 {
		t.Errorf("arguments of 1.25 MiB: %+v", r)
	}
	var s guestapi.ExecStatus
	for _, id := range []hutch.ExecID{"", "x", "e../../../../../etc/x", "e01234567890123456789012345"} {
		err := c.Call(t.Context(), "POST", guestapi.PathExec, guestapi.StartExec{ID: id, Spec: hutch.ExecSpec{Cmd: "true"}}, &s)
		if code(err) != hutch.CodeBadRequest {
			t.Errorf("start of %q: %v, want a bad_request", id, err)
		}
	}
	resp, err := c.do(t.Context(), http.MethodPost, guestapi.PathExec, strings.NewReader(`{"id":"x","spec":{"cmmd":"true"}}`))
	if err == nil {
		_ = resp.Body.Close()
	}
	if code(err) != hutch.CodeBadRequest || !strings.Contains(err.Error(), "cmmd") {
		t.Errorf("unknown field: %v %v, want a bad_request that names it", resp, err)
	}
}

func testStdin(t *testing.T, c *Client) {
	ctx := t.Context()
	t.Run("B11 ten MiB arrive", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "sha256sum", StdinOpen: true})
		data := make([]byte, 10<<20)
		rand.Read(data)
		var off int64
		for off < int64(len(data)) {
			part := data[off:min(off+3<<20, int64(len(data)))]
			r, err := c.Stdin(ctx, s.ID, off, bytes.NewReader(part), off+int64(len(part)) == int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			off = r.Offset
		}
		if got, want := string(c.End(t, s.ID).Stdout.Head), fmt.Sprintf("%x  -\n", sha256.Sum256(data)); got != want {
			t.Errorf("checksum %q, want %q", got, want)
		}
	})
	t.Run("a repeated write repeats nothing", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "cat", StdinOpen: true})
		for range 3 {
			if r, err := c.Stdin(ctx, s.ID, 0, strings.NewReader("hello"), false); err != nil || r.Offset != 5 || r.Closed {
				t.Fatalf("%+v %v", r, err)
			}
		}
		if _, err := c.Stdin(ctx, s.ID, 6, strings.NewReader("x"), false); code(err) != hutch.CodeBadRequest {
			t.Errorf("a write past the end: %v, want a bad_request", err)
		}
		if r, err := c.Stdin(ctx, s.ID, 3, strings.NewReader("lo world"), true); err != nil || r.Offset != 11 || !r.Closed {
			t.Errorf("%+v %v", r, err)
		}
		if r := c.End(t, s.ID); string(r.Stdout.Head) != "hello world" {
			t.Errorf("output %q", r.Stdout.Head)
		}
	})
	t.Run("a command that reads no more", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "exec <&-; sleep 60", StdinOpen: true})
		var r guestapi.StdinReply
		Eventually(t, 10*time.Second, "the closed input is told", func() bool {
			var err error
			if r, err = c.Stdin(ctx, s.ID, r.Offset, bytes.NewReader(make([]byte, 100)), false); err != nil {
				t.Fatal(err)
			}
			return r.Closed
		})
	})
	t.Run("a caller who leaves lets the next one in", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "sleep 1; cat | wc -c", StdinOpen: true})
		data := make([]byte, 4<<20)
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if r, err := c.Stdin(short, s.ID, 0, bytes.NewReader(data), false); err == nil {
			t.Errorf("4 MiB were taken by a command that reads nothing: %+v", r)
		}
		var taken int64
		for taken < int64(len(data)) {
			r, err := c.Stdin(ctx, s.ID, taken, bytes.NewReader(data[taken:]), true)
			if e := (*hutch.Error)(nil); errors.As(err, &e) && e.Field == "offset" {
				t.Fatal("an offset the agent gave was refused:", err)
			} else if err != nil {
				t.Fatal(err)
			}
			taken = r.Offset
			if r.Closed {
				break
			}
		}
		if out := strings.TrimSpace(string(c.End(t, s.ID).Stdout.Head)); out != strconv.Itoa(len(data)) {
			t.Errorf("the command read %s bytes, want %d", out, len(data))
		}
	})
	t.Run("without stdin_open", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "sleep 60"})
		if _, err := c.Stdin(ctx, s.ID, 0, strings.NewReader("x"), false); code(err) != hutch.CodeInvalidState {
			t.Errorf("%v, want invalid_state", err)
		}
	})
}
