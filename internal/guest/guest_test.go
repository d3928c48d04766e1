package guest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest"
	"hutch.dev/hutch/internal/guest/guesttest"
	"hutch.dev/hutch/internal/guest/machine"
	"hutch.dev/hutch/internal/guestapi"
)

func TestMain(m *testing.M) {
	nested, err := guesttest.Enter()
	if err == nil && nested != nil {
		err = serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nested agent:", err)
		os.Exit(1)
	}
	if nested == nil {
		os.Exit(m.Run())
	}
}

// serve is the agent of a nested sandbox: its standard input is a listening socket.
func serve() error {
	machine.Survive()
	if err := machine.Mount(); err != nil {
		return err
	}
	if err := machine.Isolate(); err != nil {
		return err
	}
	l, err := net.FileListener(os.Stdin)
	if err != nil {
		return err
	}
	cfg := guest.Default()
	cfg.Version, cfg.Started = "test", time.Now()
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	if err := unix.Mkfifo(restorePipe, 0o600); err != nil {
		return err
	}
	cfg.Restores = func() error { // a command that writes to the pipe plays the kernel
		_, err := os.ReadFile(restorePipe)
		return err
	}
	return guest.New(cfg).Run(context.Background(), l)
}

const restorePipe = "/run/hutch-test-restore"

func TestRestore(t *testing.T) {
	stdin, dial := guesttest.Listen(t)
	guesttest.Nested(t, guesttest.Nesting{}, stdin)
	ctx := t.Context()
	c := dial(t)
	hello := func(c *guesttest.Client, sandbox hutch.SandboxID) (r guestapi.HelloReply) {
		t.Helper()
		h := guesttest.Hello()
		h.Sandbox = sandbox
		if err := c.Call(ctx, "POST", guestapi.PathHello, h, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	health := func(c *guesttest.Client) error { return c.Call(ctx, "GET", guestapi.PathHealth, nil, nil) }
	notIdentified := &hutch.Error{Code: guestapi.CodeNotIdentified}

	restore := func(c *guesttest.Client) {
		t.Helper()
		start := guestapi.StartExec{ID: guesttest.NewID(), Spec: hutch.ExecSpec{Cmd: "echo restore > " + restorePipe}}
		if err := c.Call(ctx, "POST", guestapi.PathExec, start, nil); err != nil {
			t.Fatal(err)
		}
	}

	if r := hello(c, "ia"); r.Restored {
		t.Error("the first hello is not one after a restore")
	}
	var first string
	t.Run("before", func(t *testing.T) { first = string(c.Sh(t, "cat /etc/machine-id").Stdout.Head) })
	t.Run("the kernel's notice comes first", func(t *testing.T) {
		restore(c)
		guesttest.Eventually(t, 5*time.Second, "the gate is closed", func() bool { return errors.Is(health(c), notIdentified) })
		if r := hello(c, "ib"); !r.Restored {
			t.Error("the hello after a restore does not say so")
		}
		if err := health(c); err != nil {
			t.Error(err)
		}
		if r := hello(c, "ib"); r.Restored {
			t.Error("a second hello says that there was a restore")
		}
		if id := c.Sh(t, "cat /etc/machine-id").Stdout.Head; len(id) != 33 || string(id) == first {
			t.Errorf("machine id %q, before the restore %q", id, first)
		}
	})
	t.Run("the node's hello comes first", func(t *testing.T) {
		c := dial(t)
		if err := health(c); !errors.Is(err, notIdentified) {
			t.Errorf("health on a new session: %v", err)
		}
		if r := hello(c, "ic"); !r.Restored {
			t.Error("a hello with another sandbox's name does not say that it was restored")
		}
		restore(c)
		for range 20 { // the late notice is about a restore whose hello was heard
			if err := health(c); err != nil {
				t.Fatal(err)
			}
			c.Sh(t, "true")
		}
		restore(c) // and this is another one
		guesttest.Eventually(t, 5*time.Second, "the gate is closed", func() bool { return errors.Is(health(c), notIdentified) })
		hello(c, "id")
		h := guesttest.Hello() // one that is refused is none, and no notice is about it
		h.Sandbox, h.Profile = "ie", hutch.ProfileLocked
		if err := c.Call(ctx, "POST", guestapi.PathHello, h, nil); !errors.Is(err, hutch.ErrConflict) {
			t.Errorf("a hello with another profile: %v, want a conflict", err)
		}
		restore(c)
		guesttest.Eventually(t, 5*time.Second, "the gate is closed", func() bool { return errors.Is(health(c), notIdentified) })
		hello(c, "id")
	})
}

// A sandbox that was nobody's becomes somebody's.
func TestNobodysYet(t *testing.T) {
	stdin, dial := guesttest.Listen(t)
	guesttest.Nested(t, guesttest.Nesting{}, stdin)
	ctx := t.Context()
	c := dial(t)
	hello := func(c *guesttest.Client, sandbox hutch.SandboxID, epoch hutch.Epoch, host string) (r guestapi.HelloReply, err error) {
		h := guesttest.Hello()
		h.Sandbox, h.Epoch, h.Hostname, h.Env = sandbox, epoch, host, map[string]string{"EPOCH": fmt.Sprint(epoch)}
		return r, c.Call(ctx, "POST", guestapi.PathHello, h, &r)
	}
	becomes := func(sandbox hutch.SandboxID, epoch hutch.Epoch, host string) {
		t.Helper()
		if r, err := hello(c, sandbox, epoch, host); err != nil || r.Restored {
			t.Fatalf("hello at epoch %d: %+v, %v", epoch, r, err)
		}
	}
	says := func(cmd, want string) {
		t.Helper()
		if got := string(c.Sh(t, cmd).Stdout.Head); got != want {
			t.Errorf("%s: %q, want %q", cmd, got, want)
		}
	}
	name := "hostname; cat /etc/hostname; echo $EPOCH"
	becomes("ia", 0, "nobody")
	says(name, "nobody\nnobody\n0\n")
	becomes("ia", 0, "again")
	says(name, "again\nagain\n0\n")
	c.Sh(t, "echo kept >/etc/hostname")
	becomes("ia", 1, "again") // what was done ahead is not done a second time
	says(name, "again\nkept\n1\n")
	becomes("ia", 1, "again") // while every later hello does it all
	says(name, "again\nagain\n1\n")
	for _, id := range []hutch.SandboxID{"ia", "ib"} {
		if _, err := hello(c, id, 0, "nobody"); !errors.Is(err, hutch.ErrStale) {
			t.Errorf("%s is nobody's again: %v, want stale", id, err)
		}
	}
	says(name, "again\nagain\n1\n")

	// To become somebody's is no sign of a restore: the notice of the first one is heeded.
	start := guestapi.StartExec{ID: guesttest.NewID(), Spec: hutch.ExecSpec{Cmd: "echo restore > " + restorePipe}}
	if err := c.Call(ctx, "POST", guestapi.PathExec, start, nil); err != nil {
		t.Fatal(err)
	}
	guesttest.Eventually(t, 5*time.Second, "the gate is closed", func() bool {
		return errors.Is(c.Call(ctx, "GET", guestapi.PathHealth, nil, nil), &hutch.Error{Code: guestapi.CodeNotIdentified})
	})
	if r, err := hello(c, "ia", 2, "other"); err != nil || !r.Restored {
		t.Errorf("after a restore: %+v, %v", r, err)
	}
	says(name, "other\nother\n2\n")
}

// A sandbox is told another name than it was to have, or is a copy of one that was nobody's.
func TestNobodysBecomesAnothers(t *testing.T) {
	for name, next := range map[string]struct {
		sandbox  hutch.SandboxID
		restored bool
	}{
		"another name": {"ia", false},
		"a copy":       {"ib", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdin, dial := guesttest.Listen(t)
			guesttest.Nested(t, guesttest.Nesting{}, stdin)
			c := dial(t)
			h := guesttest.Hello()
			h.Sandbox, h.Epoch = "ia", 0
			var r guestapi.HelloReply
			if err := c.Call(t.Context(), "POST", guestapi.PathHello, h, &r); err != nil || r.Restored {
				t.Fatalf("%+v, %v", r, err)
			}
			was := string(c.Sh(t, "cat /etc/machine-id").Stdout.Head)
			h = guesttest.Hello()
			h.Sandbox, h.Epoch, h.Hostname = next.sandbox, 1, "renamed"
			if err := c.Call(t.Context(), "POST", guestapi.PathHello, h, &r); err != nil || r.Restored != next.restored {
				t.Errorf("%+v, %v", r, err)
			}
			if got := string(c.Sh(t, "hostname; cat /etc/hostname").Stdout.Head); got != "renamed\nrenamed\n" {
				t.Errorf("it calls itself %q", got)
			}
			if got := string(c.Sh(t, "cat /etc/machine-id").Stdout.Head); (got != was) != next.restored {
				t.Errorf("its machine id is %q, and was %q", got, was)
			}
		})
	}
}

func TestContract(t *testing.T) {
	for name, n := range map[string]guesttest.Nesting{
		"with control groups":    {Cgroup: true},
		"without control groups": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdin, dial := guesttest.Listen(t)
			guesttest.Nested(t, n, stdin)
			guesttest.Run(t, dial)
		})
	}
}

func TestLockedContract(t *testing.T) {
	for name, n := range map[string]guesttest.Nesting{
		"with control groups":    {Cgroup: true},
		"without control groups": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdin, dial := guesttest.Listen(t)
			guesttest.Nested(t, n, stdin)
			guesttest.Locked(t, dial)
		})
	}
}
