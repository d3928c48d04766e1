package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"

	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/failpoint"
)

const (
	// linkMTU is the largest that IP allows: with 1500, throughput is a fifth.
	linkMTU = 65535
	linkNIC = "eth0"

	// Limits on calls. Each is some hundred times what the call was measured to take
	// on an idle machine, and ten times what it took on one with every CPU taken.
	networkLimit = 10 * time.Second
	startLimit   = 30 * time.Second
	pauseLimit   = 10 * time.Second
	// Saving and loading also move all of the memory, at no less than this.
	savePerMiB = 20 * time.Millisecond
)

// The addresses inside are the same in every sandbox, so that one snapshot fits all.
var (
	linkAddr    = net.IPv4(10, 200, 0, 2).To4()
	linkGateway = net.IPv4(10, 200, 0, 1).To4()
	linkPrefix  = 30 // of the route; an address with it would make 10.200.0.3 a broadcast, and who connects there waits for ever
)

// networkCall hands the sentry its end of the link, and says what is on it. The
// sentry takes it up when it starts or restores.
func networkCall(link *os.File) call {
	zero := net.IPv4zero.To4()
	mask := net.CIDRMask(linkPrefix, 32)
	return call{
		method: boot.ContMgrSetNetworkArgs,
		arg: &boot.CreateLinksAndRoutesArgs{
			LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
			FDBasedLinks: []boot.FDBasedLink{{
				Name: linkNIC, MTU: linkMTU, NumChannels: 1,
				QDisc: config.QDiscFIFO, RXChecksumOffload: true,
				Addresses: []boot.IPWithPrefix{{Address: linkAddr, PrefixLen: 32}},
				Routes:    []boot.Route{{Destination: net.IPNet{IP: linkAddr.Mask(mask), Mask: mask}}},
			}},
			Defaultv4Gateway: boot.DefaultRoute{Name: linkNIC, Route: boot.Route{
				Destination: net.IPNet{IP: zero, Mask: net.CIDRMask(0, 32)}, Gateway: linkGateway,
			}},
		},
		files: []*os.File{link},
		limit: networkLimit,
	}
}

// Start lets the prepared sandbox go.
func (s *sandbox) Start(ctx context.Context, o runtime.StartOptions) error {
	end, err := s.begin(ctx, "starting", prepared)
	if err != nil {
		return err
	}
	defer end()
	begun := time.Now()
	if err := s.enter(starting); err != nil {
		return s.fail(err, "started")
	}
	failpoint.At(failpoint.MachineStarting)
	if o.Snapshot == "" {
		err = s.boot(ctx)
	} else {
		err = s.restore(ctx, o.Snapshot)
	}
	if err != nil {
		return s.fail(err, "started")
	}
	failpoint.At(failpoint.MachineBooted)
	s.stage("rpc", begun)
	if err := s.limitCPU(); err != nil {
		return s.fail(err, "started")
	}
	if err := s.enter(running); err != nil {
		return s.fail(err, "started")
	}
	failpoint.At(failpoint.MachineRunning)
	s.calmLater()
	return nil
}

// boot starts the sandbox from its image.
func (s *sandbox) boot(ctx context.Context) error {
	before, err := s.group.Procs()
	if err != nil {
		return err
	}
	id := string(s.id)
	if err := s.call(ctx, call{method: boot.ContMgrRootContainerStart, arg: &id, limit: startLimit}); err != nil {
		return err
	}
	after, err := s.group.Procs()
	if err != nil {
		return err
	}
	// The processes that are new are those in which the guest agent runs. When
	// memory is out, the kernel would take them before many small programs, and the
	// sandbox ends with the agent. (In a sandbox that was restored there is no
	// telling which they are.)
	agent := slices.DeleteFunc(after, func(pid int) bool { return slices.Contains(before, pid) })
	for _, pid := range agent {
		if err := spare(pid); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return s.favourAgent(before, agent)
}

// restore starts the sandbox from the snapshot in dir.
func (s *sandbox) restore(ctx context.Context, dir string) error {
	if err := s.checkSnapshot(dir); err != nil {
		return err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, name := range snapshotFiles {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("open snapshot: %w", err)
		}
		files = append(files, f)
	}
	return s.call(ctx, call{
		method: boot.ContMgrRestore,
		arg:    &boot.RestoreOpts{HavePagesFile: true},
		files:  files,
		limit:  s.saveLimit(),
	})
}

// saveLimit is how long saving or loading the sandbox may take.
func (s *sandbox) saveLimit() time.Duration {
	return startLimit + time.Duration(s.spec.Resources.MemoryMB+s.spec.Resources.DiskMB)*savePerMiB
}

// snapshotFiles are what gVisor's uncompressed snapshots consist of, in the order in
// which it wants them.
var snapshotFiles = []string{
	checkpointfiles.StateFileName,
	checkpointfiles.PagesMetadataFileName,
	checkpointfiles.PagesFileName,
}
