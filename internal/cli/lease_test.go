package cli_test

import (
	"os"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// Its sandbox lives as long as it does, whatever goes wrong in between.
func TestKeepAlive(t *testing.T) {
	w := newWorld(t)
	renewed := make(chan struct{}, 100)
	var calls atomic.Int32
	w.OnCall = func(method string) error {
		if method != "RenewSandbox" {
			return nil
		}
		if calls.Add(1) == 1 {
			return hutch.Errorf(hutch.CodeConflict, "not now")
		}
		renewed <- struct{}{}
		return nil
	}
	w.ok("ls") // whoever serves from now on has seen it
	p := w.start(t, "create", "--lease", "0.3s", "--keep-alive")
	id := p.line()
	for range 2 {
		<-renewed
	}
	if got := p.stderr.String(); got != "hutch: renew "+id+": not now\n" {
		t.Errorf("it says %q", got)
	}
	p.signal(os.Interrupt)
	if code := p.end(); code != 0 {
		t.Errorf("told to end, it ends with %d: %s", code, p.stderr)
	}
	if r := w.run("get", id); r.code != 0 {
		t.Errorf("its sandbox ended with it: %s", r.err)
	}
}

func TestKeepAliveEndsWithItsSandbox(t *testing.T) {
	w := newWorld(t)
	p := w.start(t, "create", "--lease", "0.3s", "--keep-alive")
	w.ok("rm", p.line())
	if code := p.end(); code != 1 {
		t.Errorf("its sandbox is gone, and it ends with %d", code)
	}
}

// What a sandbox may end of is shown, so that nobody has to ask its maker.
func TestGetShowsOwnerAndBudget(t *testing.T) {
	w := newWorld(t)
	w.Now = func() time.Time { return httpapitest.Epoch }
	w.env.Now = func() time.Time { return w.Now().Add(10 * time.Second) }
	golden(t, "get-owned", w.ok("get", w.ok("create", "--hostname", "box", "--profile", "locked", "--lease", "1m", "--max-cpu", "90s", "--max-cost", "0.5")))
	one := w.ok("get", w.ok("create", "--max-cost", "2"))
	if !regexp.MustCompile(`(?m)^budget +a cost of 2$`).MatchString(one) {
		t.Errorf("with a budget in money only: %s", one)
	}
}
