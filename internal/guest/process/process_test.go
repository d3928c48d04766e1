package process

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
)

func TestCheckSpecDefaults(t *testing.T) {
	s, err := checkSpec(hutch.ExecSpec{Cmd: "x"})
	if err != nil || s.Timeout != hutch.DefaultExecTimeout || s.Grace != hutch.DefaultGrace || s.MaxOutputBytes != hutch.DefaultOutputBytes {
		t.Errorf("%+v %v", s, err)
	}
	s, err = checkSpec(hutch.ExecSpec{Argv: []string{"x"}, Background: true, Grace: time.Second, MaxOutputBytes: 64})
	if err != nil || s.Timeout != 0 || s.Grace != time.Second || s.MaxOutputBytes != 64 {
		t.Errorf("%+v %v", s, err)
	}
}

func TestCheckSpecZeroBytes(t *testing.T) {
	for field, s := range map[string]hutch.ExecSpec{
		"cmd":  {Cmd: "a\x00b"},
		"argv": {Argv: []string{"a", "b\x00"}},
		"cwd":  {Cmd: "a", Cwd: "/\x00"},
		"env":  {Cmd: "a", Env: map[string]string{"A": "\x00"}},
	} {
		_, err := checkSpec(s)
		var e *hutch.Error
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("zero byte in %s: %v", field, err)
		}
	}
}

func TestPlan(t *testing.T) {
	table := New(Config{Accounts: account.Database{Passwd: "/none", Group: "/none"}})
	set := Settings{
		Env:      map[string]string{"A": "sandbox", "B": "sandbox"},
		Defaults: hutch.ProcessDefaults{User: "1000:1001", Cwd: "/srv", Env: map[string]string{"A": "template", "C": "template"}},
	}
	p, err := table.newPlan(hutch.ExecSpec{Cmd: "echo", Cwd: "sub", Env: map[string]string{"B": "request"}}, set)
	if err != nil {
		t.Fatal(err)
	}
	if p.cwd != "/srv/sub" || p.user.UID != 1000 || p.user.GID != 1001 || !slices.Equal(p.argv, []string{"/bin/sh", "-c", "echo"}) {
		t.Errorf("plan %+v", p)
	}
	for name, want := range map[string]string{"A": "sandbox", "B": "request", "C": "template", "PATH": DefaultPath, "USER": "1000"} {
		if p.env[name] != want {
			t.Errorf("%s=%q, want %q", name, p.env[name], want)
		}
	}
	env := p.environ("eid")
	if !slices.IsSorted(env[:len(env)-1]) || env[len(env)-1] != "HUTCH_EXEC_ID=eid" {
		t.Errorf("environment %q", env)
	}
	set.Defaults.Cwd = "relative"
	if _, err := table.newPlan(hutch.ExecSpec{Cmd: "x"}, set); err == nil {
		t.Error("a relative directory of the template was taken")
	}
}

func TestCandidates(t *testing.T) {
	p := plan{cwd: "/srv", env: map[string]string{"PATH": "/a:rel::/b/"}}
	for program, want := range map[string][]string{
		"x":      {"/a/x", "/srv/rel/x", "/srv/x", "/b/x"},
		"/bin/x": {"/bin/x"},
		"./x":    {"/srv/x"},
		"d/x":    {"/srv/d/x"},
	} {
		p.argv = []string{program}
		if got := p.candidates(); !reflect.DeepEqual(got, want) {
			t.Errorf("candidates of %s: %q, want %q", program, got, want)
		}
	}
}

func TestValidID(t *testing.T) {
	for id, want := range map[hutch.ExecID]bool{
		"e0123456789abcdefghij": true,
		"":                      false, "e": false, "i0123456789abcdefghij": false,
		"e0123456789abcdefghi/": false, "e0123456789ABCDEFGHIJ": false, "e0123456789abcdefghijk": false,
	} {
		if got := validID(id); got != want {
			t.Errorf("validID(%q) = %t, want %t", id, got, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	exited, killed := syscall.WaitStatus(7<<8), syscall.WaitStatus(unix.SIGKILL)
	if end, code, sig := exitCode(exited); end != hutch.ExecExit || code != 7 || sig != "" {
		t.Errorf("exit 7: %s %d %q", end, code, sig)
	}
	if end, code, sig := exitCode(killed); end != hutch.ExecSignal || code != 137 || sig != "KILL" {
		t.Errorf("killed: %s %d %q", end, code, sig)
	}
	if end, code, sig := exitCode(40); end != hutch.ExecSignal || code != 168 || sig != "40" {
		t.Errorf("killed by a signal without a name: %s %d %q", end, code, sig)
	}
	for _, c := range []struct {
		end    hutch.ExecEnd
		status syscall.WaitStatus
		code   int
		signal string
	}{
		{hutch.ExecTimeout, killed, 124, "KILL"},
		{hutch.ExecNoOutput, exited, 124, "TERM"},
		{hutch.ExecCancelled, killed, 137, "KILL"},
		{hutch.ExecCancelled, syscall.WaitStatus(unix.SIGTERM), 143, "TERM"},
		{hutch.ExecCancelled, exited, 143, "TERM"}, // it caught TERM and exited
		{hutch.ExecOOM, killed, 137, "KILL"},
	} {
		if code, sig := stoppedCode(c.end, exit{status: c.status}); code != c.code || sig != c.signal {
			t.Errorf("%s, %v: %d %q, want %d %q", c.end, c.status, code, sig, c.code, c.signal)
		}
	}
}

func TestCapped(t *testing.T) {
	list := make([]hutch.KilledProcess, maxListed+7)
	if detail := capped(&list, "why"); len(list) != maxListed || detail != "why; 7 more processes are not listed" {
		t.Errorf("%d listed, %q", len(list), detail)
	}
	if detail := capped(&list, ""); len(list) != maxListed || detail != "" {
		t.Errorf("%d listed, %q", len(list), detail)
	}
}

func FuzzSignalNumber(f *testing.F) {
	for _, s := range []string{"INT", "SIGTERM", "kill", "", "SIG", "RTMIN", "SIGSIGINT"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		sig, ok := signalNumber(name)
		if !ok {
			return
		}
		if sig < 1 || sig > 64 || !strings.EqualFold(strings.TrimPrefix(strings.ToUpper(name), "SIG"), signalName(sig)) {
			// Two names of one signal, such as CLD and CHLD, are the only other way.
			if back, ok := signalNumber(signalName(sig)); !ok || back != sig {
				t.Errorf("%q is signal %d, which is %q", name, sig, signalName(sig))
			}
		}
	})
}
