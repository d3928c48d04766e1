package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/guesttest"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestimage"
	"hutch.dev/hutch/internal/guestlink"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/gvisor"
	"hutch.dev/hutch/internal/x/id"
)

// The guest agent keeps its contract in a real sandbox too, on both disk tiers.
func TestGuestContractInASandbox(t *testing.T) {
	t.Parallel() // much of it is waiting for commands that take their time
	for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
		t.Run(string(tier), func(t *testing.T) {
			t.Parallel()
			guesttest.Run(t, func(t *testing.T) *guesttest.Client { return guestOf(t, machine(t, tier)) })
		})
	}
}

// With what a command used the guest tells what all did while it ran, those included that have
// ended and are forgotten: its host shares the sandbox's CPU time out by that.
func TestGuestTellsWhatAllCommandsUsed(t *testing.T) {
	c := guestOf(t, machine(t, hutch.TierDisk))
	if err := c.Call(t.Context(), http.MethodPost, guestapi.PathHello, guesttest.Hello(), nil); err != nil {
		t.Fatal(err)
	}
	const busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
	waits := c.Start(t, hutch.ExecSpec{Cmd: "until [ -e /tmp/over ]; do sleep 0.1; done"})
	beside := c.Start(t, hutch.ExecSpec{Cmd: "while :; do :; done"})
	own := c.Start(t, hutch.ExecSpec{Cmd: busy})
	guesttest.Eventually(t, time.Minute, "the busy command has ended", func() bool { return !c.Status(t, own.ID).Running })
	if st := c.Status(t, own.ID); st.Result.CPU <= 0 || st.AllCPU < st.Result.CPU*3/2 {
		t.Errorf("it used %v, and all together %v", st.Result.CPU, st.AllCPU)
	}
	c.Stop(t, beside.ID, guestapi.Stop{Reason: hutch.ExecCancelled})
	used := c.Status(t, own.ID).Result.CPU + c.Status(t, beside.ID).Result.CPU
	for _, x := range []guestapi.ExecStatus{own, beside} {
		if err := c.Call(t.Context(), http.MethodDelete, guestapi.PathExec+"/"+string(x.ID), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	c.Sh(t, "touch /tmp/over")
	guesttest.Eventually(t, time.Minute, "the waiting command has ended", func() bool { return !c.Status(t, waits.ID).Running })
	if st := c.Status(t, waits.ID); st.AllCPU < used*9/10 { // which two clocks measure
		t.Errorf("while it ran others used %v, and all together %v", used, st.AllCPU)
	}
}

// machine starts a sandbox without anything of the platform around it.
func machine(t *testing.T, tier hutch.DiskTier, edits ...func(*runtime.Spec)) runtime.Sandbox {
	t.Helper()
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hutch-guest") //nolint:usetesting // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(dir))
	rt := gvisor.New(gvisor.Config{
		StateDir: filepath.Join(dir, "run"), Exe: exe, CgroupParent: "hutch-guest-" + hex.EncodeToString(sum[:6]),
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	// The image as it is in the binary under test's data directory: tests carry none.
	image, _, err := guestimage.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	base, err := common(t).client.Template(t.Context(), "base")
	if err != nil {
		t.Fatalf("the base template is missing; run `make base`: %v", err)
	}
	root, err := rootfs.New(rootfs.Config{Dir: rootfs.CacheDir()}).Path(base.Image)
	if err != nil {
		t.Fatal(err)
	}
	spec := runtime.Spec{
		ID: hutch.SandboxID(id.NewSandbox()), Image: root, Guest: image, Hostname: "guest",
		Resources: hutch.Resources{MilliCPU: 2000, MemoryMB: 1024, DiskMB: 512, DiskTier: tier, Pids: 512},
	}
	for _, edit := range edits {
		edit(&spec)
	}
	sb, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := sb.Kill(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := sb.Start(t.Context(), runtime.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	return sb
}

// guestOf is a client of a sandbox's guest agent.
func guestOf(t *testing.T, sb runtime.Sandbox) *guesttest.Client {
	t.Helper()
	host, err := guestlink.NewHost(sb.Handles().Guest)
	if err != nil {
		t.Fatal(err)
	}
	tr := guestlink.NewTransport(host)
	t.Cleanup(func() { _ = tr.Close() })
	return &guesttest.Client{HTTP: &http.Client{Transport: tr}}
}
