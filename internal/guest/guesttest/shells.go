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

// shell is a shell session of a test, which closes it.
type shell struct {
	c    *Client
	name string
}

func (c *Client) shell(t testing.TB, name string) *shell {
	t.Cleanup(func() {
		err := c.Call(context.WithoutCancel(t.Context()), "DELETE", guestapi.PathShells+"/"+name, nil, nil)
		if err != nil && code(err) != hutch.CodeNotFound {
			t.Errorf("close shell %s: %v", name, err)
		}
	})
	return &shell{c, name}
}

// run runs a command in the session to its end.
func (s *shell) run(t testing.TB, cmd string) hutch.ExecResult {
	t.Helper()
	return s.c.Run(t, hutch.ExecSpec{Cmd: cmd, Shell: s.name, Timeout: time.Minute})
}

// says runs a command that must say exactly that, and succeed.
func (s *shell) says(t testing.TB, cmd, want string) hutch.ExecResult {
	t.Helper()
	r := s.run(t, cmd)
	if string(r.Stdout.Head) != want || r.ExitCode != 0 || r.End != hutch.ExecExit {
		t.Errorf("%.200q: %q and %q on stderr, %s %d %s; want %q", cmd, r.Stdout.Head, r.Stderr.Head, r.End, r.ExitCode, r.Detail, want)
	}
	return r
}

func (c *Client) shells(t testing.TB) map[string]hutch.Shell {
	t.Helper()
	var l guestapi.Shells
	c.must(t, "GET", guestapi.PathShells, nil, &l)
	m := map[string]hutch.Shell{}
	for _, s := range l.Shells {
		m[s.Name] = s
	}
	return m
}

func testShell(t *testing.T, c *Client) {
	c.needBash(t)
	t.Run("B20 what one command leaves is there for the next", func(t *testing.T) {
		s := c.shell(t, "B20")
		r := s.says(t, "cd /tmp; export A=1; b=two; f() { echo f of $1; }; set -f; trap 'echo got USR1' USR1; declare -A m; m[x]=y; shopt -s nullglob", "")
		if r.Cwd != "/tmp" || r.ShellReplaced != "" {
			t.Errorf("%+v", r)
		}
		s.says(t, "pwd; echo $A $b; f $A; echo *; echo ${m[x]}; shopt -q nullglob && echo set", "/tmp\n1 two\nf of 1\n*\ny\nset\n")
		s.says(t, "kill -USR1 $$", "got USR1\n")
		s.says(t, "sh -c 'echo $A-$b'", "1-\n")
		if r := s.run(t, "cd /; false"); r.ExitCode != 1 || r.Cwd != "/" {
			t.Errorf("%+v", r)
		}
		s.says(t, "echo $?", "1\n")
		s.says(t, "echo $?", "0\n")
		d := c.shells(t)["B20"]
		if d.PID <= 0 || d.User != "root" || d.Cwd != "/" || d.Commands != 7 || d.Exec != "" || d.StartedAt.IsZero() {
			t.Errorf("listed as %+v", d)
		}
	})
	t.Run("B05 a here-document without its end", func(t *testing.T) {
		s := c.shell(t, "B05")
		s.says(t, "cat <<EOF\nhello", "hello\n")
		s.says(t, "echo ok", "ok\n")
	})
	t.Run("B06 here-documents, and programs in them that take their time", func(t *testing.T) {
		s := c.shell(t, "B06")
		s.says(t, "cat <<'EOF'\n'quoted' $x `y`\nEOF\necho after", "'quoted' $x `y`\nafter\n")
		if r := c.Sh(t, "command -v python3"); r.ExitCode == 0 {
			s.says(t, "python3 - <<'PY'\nimport time; time.sleep(1); print('x')\nPY", "x\n")
		}
	})
	c.shellTexts(t)
	c.shellStreams(t)
	c.shellEnds(t)
	c.shellTold(t)
	t.Run("stops", func(t *testing.T) { c.shellStops(t) })
	t.Run("background children", func(t *testing.T) { c.shellBackground(t) })
	t.Run("start and close", func(t *testing.T) { c.shellStart(t) })
}

func (c *Client) shellTexts(t *testing.T) {
	t.Run("texts", func(t *testing.T) {
		s := c.shell(t, "texts")
		for cmd, want := range map[string]string{
			"echo \"it's\" 'a \"test\"' \\\\":                               "it's a \"test\" \\\n",
			"-x 2>/dev/null; echo dash":                                     "dash\n",
			"# only a comment":                                              "",
			"for i in 1 2 3\ndo echo $i\ndone":                              "1\n2\n3\n",
			"while true; do break; done; echo on":                           "on\n",
			"break 2>/dev/null; echo on":                                    "on\n",
			"echo ü 🙂":                                                      "ü 🙂\n",
			"echo \"ü's\" 'ä\\n' \\\\ö $'\\x01\x01\x7fé'":                   "ü's ä\\n \\ö \x01\x01\x7fé\n",
			"LC_ALL=C.UTF-8; x=ü; echo ${#x} $x":                            "1 ü\n",
			"LC_ALL=C; x=ü; echo ${#x} $x; unset LC_ALL":                    "2 ü\n",
			"printf '\\001\\000\\377' | wc -c | tr -d ' '":                  "3\n",
			"read -r x; echo [$x]":                                          "[]\n",
			"cat":                                                           "",
			"echo a\\\nb":                                                   "ab\n",
			"exec 7>/tmp/shell-seven; echo seven >&7; cat /tmp/shell-seven": "seven\n",
			"echo __hutch_end x":                                            "__hutch_end x\n",
			"(exit 5) || echo five":                                         "five\n",
			"echo " + strings.Repeat("x", 100_000) + " | wc -c | tr -d ' '": "100001\n",
		} {
			s.says(t, cmd, want)
		}
		for cmd, want := range map[string]int{"if then": 2, "echo 'open": 2, "no-such-program": 127, "/tmp": 126, "(exit 9)": 9, "kill -TERM $BASHPID & wait $!": 143} {
			if r := s.run(t, cmd); r.ExitCode != want || r.End != hutch.ExecExit || r.ShellReplaced != "" {
				t.Errorf("%q: %+v, want exit %d", cmd, r, want)
			}
		}
		s.says(t, "echo still $((1 + 1))", "still 2\n")
		if r := s.run(t, "no-such-program"); !bytes.Contains(r.Stderr.Head, []byte("command not found")) {
			t.Errorf("%+v", r)
		}
	})
	t.Run("D13 bytes that look like our framing", func(t *testing.T) {
		s := c.shell(t, "D13")
		var octal strings.Builder
		for i := range 256 {
			fmt.Fprintf(&octal, `\%03o`, i)
		}
		r := s.run(t, "printf '"+octal.String()+"'; printf 'x 0 /\\0' | tee -a /run/hutch/*/status > /dev/null; (exit 3)")
		if len(r.Stdout.Head) != 256 || r.ExitCode != 3 {
			t.Errorf("%d bytes, %+v", len(r.Stdout.Head), r)
		}
	})
	t.Run("a program that is started sees nothing of the session's pipes", func(t *testing.T) {
		s := c.shell(t, "fds")
		s.says(t, "set -- $(sh -c 'echo /proc/$$/fd/*'); echo $# | tr -d ' '", "4\n") // 0, 1, 2 and the sh's own for its glob or script
	})
}

func (c *Client) shellStreams(t *testing.T) {
	t.Run("the streams are those of any command", func(t *testing.T) {
		s := c.shell(t, "streams")
		r := c.Run(t, hutch.ExecSpec{Cmd: "seq 1 100000; echo err >&2", Shell: "streams", MaxOutputBytes: 1000})
		if r.Stdout.Total != 588895 || r.Stdout.Path == "" || string(r.Stderr.Head) != "err\n" {
			t.Errorf("%+v", r)
		}
		for range 30 { // the last bytes are never lost
			r := s.run(t, "head -c 70000 /dev/zero | tr '\\0' x")
			if len(r.Stdout.Head) != 70000 {
				t.Fatalf("%d bytes", len(r.Stdout.Head))
			}
		}
		st := c.Start(t, hutch.ExecSpec{Cmd: "read -r a; echo got $a; cat", Shell: "streams", StdinOpen: true})
		if err := c.appendInput(t.Context(), st.ID, "one\ntwo\n", true); err != nil {
			t.Fatal(err)
		}
		if r := c.End(t, st.ID); string(r.Stdout.Head) != "got one\ntwo\n" {
			t.Errorf("%+v", r)
		}
		for range 10 { // also if it is over before the shell has come to the command
			for _, x := range []struct{ cmd, in, want string }{
				{"cat", "data\nmore\n", "data\nmore\n"},
				{"cat", "", ""},
				{"echo ok; read -r x; echo got=$x", "in put\nrest\n", "ok\ngot=in put\n"},
			} {
				st := c.Start(t, hutch.ExecSpec{Cmd: x.cmd, Shell: "streams", StdinOpen: true, Timeout: 10 * time.Second})
				if err := c.appendInput(t.Context(), st.ID, x.in, true); err != nil {
					t.Fatal(err)
				}
				if r := c.End(t, st.ID); string(r.Stdout.Head) != x.want || r.ExitCode != 0 {
					t.Fatalf("%q: %+v", x.cmd, r)
				}
			}
		}
		s.run(t, "set -x")
		if r := s.says(t, "echo traced", "traced\n"); string(r.Stderr.Head) != "+++ echo traced\n" {
			t.Errorf("traced as %q", r.Stderr.Head)
		}
		s.run(t, "set +x")
		s.says(t, "exec >/tmp/shell-exec; echo into the file", "")
		s.says(t, "cat /tmp/shell-exec", "into the file\n")
	})
	t.Run("busy", func(t *testing.T) {
		s := c.shell(t, "busy")
		c.Sh(t, "rm -f /tmp/shell-go")
		st := c.Start(t, hutch.ExecSpec{Cmd: "echo began; until [ -e /tmp/shell-go ]; do sleep 0.05; done; x=1", Shell: "busy"})
		if e := c.Refused(t, hutch.ExecSpec{Cmd: "touch /tmp/shell-typed", Shell: "busy"}); e.Code != hutch.CodeShellBusy {
			t.Errorf("%v, want shell_busy", e)
		}
		if d := c.shells(t)["busy"]; d.Exec != st.ID {
			t.Errorf("listed as %+v, want %s in it", d, st.ID)
		}
		c.Sh(t, "touch /tmp/shell-go")
		c.End(t, st.ID)
		s.says(t, "echo $x; ls /tmp/shell-typed 2>/dev/null; true", "1\n")
		var wg sync.WaitGroup
		var mu sync.Mutex
		ran, refused := 0, 0
		for range 8 { // all of them the first command
			wg.Go(func() {
				id := NewID()
				err := c.Call(t.Context(), "POST", guestapi.PathExec, guestapi.StartExec{ID: id, Spec: hutch.ExecSpec{Cmd: "sleep 327", Shell: "busy2"}}, nil)
				mu.Lock()
				defer mu.Unlock()
				switch code(err) {
				case "":
					ran++
					t.Cleanup(func() { c.forget(t, id) })
				case hutch.CodeShellBusy:
					refused++
				default:
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		c.shell(t, "busy2")
		if ran != 1 || refused != 7 {
			t.Errorf("%d ran, %d were refused", ran, refused)
		}
	})
}

func (c *Client) shellEnds(t *testing.T) {
	t.Run("a session that ends", func(t *testing.T) {
		s := c.shell(t, "ends")
		for cmd, want := range map[string]hutch.ExecResult{
			"echo out; exit 3":                        {End: hutch.ExecExit, ExitCode: 3, ShellReplaced: "exited"},
			"echo out; set -e; false; echo no":        {End: hutch.ExecExit, ExitCode: 1, ShellReplaced: "exited"},
			"echo out; exec sh -c 'exit 4'":           {End: hutch.ExecExit, ExitCode: 4, ShellReplaced: "exited"},
			"echo out; kill -9 $$":                    {End: hutch.ExecSignal, ExitCode: 137, ShellReplaced: "killed"},
			"trap 'echo out' EXIT; exit 0":            {End: hutch.ExecExit, ShellReplaced: "exited"},
			"echo out; exec 2>&-; unset -v x; exit 6": {End: hutch.ExecExit, ExitCode: 6, ShellReplaced: "exited"},
		} {
			s.says(t, "x=before", "")
			r := s.run(t, cmd)
			if r.End != want.End || r.ExitCode != want.ExitCode || string(r.Stdout.Head) != "out\n" || r.Cwd != "" {
				t.Errorf("%q: %+v", cmd, r)
			}
			if r := s.says(t, "echo [$x]", "[]\n"); r.ShellReplaced != want.ShellReplaced {
				t.Errorf("after %q: replaced %q, want %q", cmd, r.ShellReplaced, want.ShellReplaced)
			}
			if r := s.says(t, "echo again", "again\n"); r.ShellReplaced != "" {
				t.Errorf("after that: replaced %q", r.ShellReplaced)
			}
		}
	})
}

// shellTold is about what a shell is told: it arrives whole, and nothing else does.
func (c *Client) shellTold(t *testing.T) {
	t.Run("started while processes end", func(t *testing.T) { // each with a signal to the agent
		busy := c.Start(t, hutch.ExecSpec{Cmd: "while :; do (:) & done", Background: true})
		defer c.Stop(t, busy.ID, guestapi.Stop{})
		for i := range 30 {
			name := fmt.Sprintf("signals%d", i)
			c.shell(t, name).says(t, "echo "+name, name+"\n")
			c.must(t, "DELETE", guestapi.PathShells+"/"+name, nil, nil)
		}
	})
	t.Run("by somebody else", func(t *testing.T) {
		s := c.shell(t, "told")
		s.says(t, "printf 'echo not ours; ' | tee /run/hutch/*/text > /dev/null", "")
		s.says(t, "echo ours", "ours\n")
	})
	t.Run("more than a pipe holds", func(t *testing.T) {
		s := c.shell(t, "more")
		s.says(t, "echo "+strings.Repeat("ü", 60_000)+" | wc -c | tr -d ' '", "120001\n")
		s.says(t, "echo on", "on\n")
	})
}

func (c *Client) shellStart(t *testing.T) {
	t.Run("where and as whom", func(t *testing.T) {
		c.shell(t, "as")
		spec := hutch.ExecSpec{Cmd: "pwd; id -u; echo $V", Shell: "as", Cwd: "/usr", User: "12345:12345", Env: map[string]string{"V": "1"}}
		if r := c.Run(t, spec); string(r.Stdout.Head) != "/usr\n12345\n1\n" {
			t.Errorf("%+v", r)
		}
		for field, spec := range map[string]hutch.ExecSpec{
			"cwd": {Cwd: "/usr"}, "env": {Env: map[string]string{"V": "1"}}, "user": {User: "root"},
		} {
			spec.Cmd, spec.Shell = "true", "as"
			if e := c.Refused(t, spec); e.Field != field || e.Code != hutch.CodeBadRequest {
				t.Errorf("%s of a session that runs: %v", field, e)
			}
		}
		if r := c.Run(t, hutch.ExecSpec{Cmd: "id -u", Shell: "as", User: "12345:12345"}); string(r.Stdout.Head) != "12345\n" {
			t.Errorf("%+v", r)
		}
		if d := c.shells(t)["as"]; d.User != "12345" || d.Cwd != "/usr" {
			t.Errorf("listed as %+v", d)
		}
		if e := c.Refused(t, hutch.ExecSpec{Cmd: "true", Shell: "nowhere", Cwd: "/no/such/dir"}); e.Field != "cwd" {
			t.Errorf("%v", e)
		}
		if _, ok := c.shells(t)["nowhere"]; ok {
			t.Error("a session that could not be started is listed")
		}
	})
	t.Run("refusals", func(t *testing.T) {
		for field, spec := range map[string]hutch.ExecSpec{
			"shell":    {Shell: "a b", Cmd: "true"},
			"login":    {Shell: "x", Cmd: "true", Login: true},
			"terminal": {Shell: "x", Cmd: "true", Terminal: &hutch.TerminalSize{}},
			"cmd":      {Shell: "x", Cmd: strings.Repeat("x", 1<<17)},
		} {
			if e := c.Refused(t, spec); e.Field != field {
				t.Errorf("%s: %v", field, e)
			}
		}
		if e := c.Refused(t, hutch.ExecSpec{Shell: "x", Argv: []string{"true"}}); e.Field != "shell" {
			t.Errorf("argv: %v", e)
		}
		if e := c.Refused(t, hutch.ExecSpec{Shell: strings.Repeat("x", 65), Cmd: "true"}); e.Field != "shell" {
			t.Errorf("a long name: %v", e)
		}
	})
	t.Run("close", func(t *testing.T) {
		s := c.shell(t, "close")
		s.says(t, "x=1", "")
		st := c.Start(t, hutch.ExecSpec{Cmd: "sleep 326", Shell: "close"})
		c.must(t, "DELETE", guestapi.PathShells+"/close", nil, nil)
		if r := c.End(t, st.ID); r.End != hutch.ExecCancelled {
			t.Errorf("what ran in it: %+v", r)
		}
		gone(t, c, st.ID)
		if _, ok := c.shells(t)["close"]; ok {
			t.Error("it is listed")
		}
		if err := c.Call(t.Context(), "DELETE", guestapi.PathShells+"/close", nil, nil); code(err) != hutch.CodeNotFound {
			t.Errorf("closed again: %v, want not_found", err)
		}
		if r := s.says(t, "echo [$x]", "[]\n"); r.ShellReplaced != "" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("no more than so many", func(t *testing.T) {
		have := len(c.shells(t))
		for i := have; i < 32; i++ {
			name := fmt.Sprintf("many%d", i)
			c.shell(t, name)
			c.Start(t, hutch.ExecSpec{Cmd: "true", Shell: name})
		}
		if e := c.Refused(t, hutch.ExecSpec{Cmd: "true", Shell: "one-more"}); e.Code != hutch.CodeUnavailable {
			t.Errorf("%v, want unavailable", e)
		}
	})
}
