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
	"hutch.dev/hutch/internal/guestimage"
	"hutch.dev/hutch/internal/guestlink"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/gvisor"
	"hutch.dev/hutch/internal/x/id"
)

// The guest agent keeps its contract in a real sandbox too, on both disk tiers.
func TestGuestContractInASandbox(t *testing.T) {
	for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
		t.Run(string(tier), func(t *testing.T) {
			guesttest.Run(t, func(t *testing.T) *guesttest.Client { return guestOf(t, machine(t, tier)) })
		})
	}
}

// machine starts a sandbox without anything of the platform around it.
func machine(t *testing.T, tier hutch.DiskTier) runtime.Sandbox {
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
