package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	_ "unsafe" // for go:linkname

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentryfilter "gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter"
	"gvisor.dev/gvisor/runsc/version"

	"hutch.dev/hutch/internal/runtime/gvisor"
	"hutch.dev/hutch/internal/runtime/gvisor/gen"
	"hutch.dev/hutch/internal/x/collect"
)

// The names gVisor gives its own processes when it executes itself.
const (
	argvSentry = "runsc-sandbox"
	argvGofer  = "runsc-gofer"
	argvSelf   = "/proc/self/exe" // the helper that unmounts /proc for a sentry
)

// sentryGC lets the sentry's heap grow to five times what is live before it is
// collected: measured, a restore is a tenth faster, for a heap of a few MiB. A start does
// not come to collect at all. calmGC is Go's own figure, for a sentry that has started.
const (
	sentryGC = 400
	calmGC   = 100
)

// calmDown makes this process, a sentry, less lazy with its first collection, which the runtime
// asks it for some time after its start (calm.go there): it gives the garbage of the start back to
// the host. Measured on one that idles, that is a fifth of its own memory.
func calmDown() {
	sentinel := new([64]byte) // as large as that, so that it has a place of its own
	runtime.AddCleanup(sentinel, func(struct{}) {
		go func() {
			debug.SetGCPercent(calmGC)
			debug.FreeOSMemory()
		}()
	}, struct{}{})
}

// maybeRunsc turns this process into gVisor's runsc if it was started as one, and
// then never returns. It must be the first thing main does: a sentry has no
// environment, no flags of ours and no file system to look at.
func maybeRunsc() {
	switch {
	case os.Args[0] == argvSentry:
		debug.SetGCPercent(sentryGC)
		collect.Every(collect.Idle)
		calmDown()
		args, err := sizeSentry(os.Args)
		if err != nil {
			util.Fatalf("size sentry: %v", err)
		}
		os.Args = args
	case os.Args[0] == argvGofer:
		collect.Every(collect.Idle)
	case os.Args[0] == argvSelf:
	case len(os.Args) > 1 && os.Args[1] == gvisor.RunscCommand:
		if err := gvisor.EnterSandbox(); err != nil {
			fmt.Fprintln(os.Stderr, "hutch runsc:", err)
			os.Exit(1)
		}
		os.Args = append(os.Args[:1:1], os.Args[2:]...)
	default:
		return
	}
	injectSeccomp()
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Create):       "",
		new(sentrycmd.Boot):   "internal",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Umount): "internal",
	}, nil)
	os.Exit(0)
}

//go:linkname sentryPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

// injectSeccomp hands gVisor the seccomp programs that were compiled ahead. If the
// binary was built with another gVisor than they were made from, or without a
// version stamp, gVisor compiles its own instead: slower, never wrong.
func injectSeccomp() {
	if version.Version() != gen.GvisorVersion {
		return
	}
	sentryfilter.ListPrecompiled() // makes the map
	goferfilter.ListPrecompiled()
	for _, p := range gen.Sentry {
		sentryPrograms[p.Name] = p
	}
	for _, p := range gen.Gofer {
		goferPrograms[p.Name] = p
	}
}

// sizeSentry returns the sentry's arguments with its number of CPUs, CPU quota and
// memory set to what the sandbox's spec asks for. runsc derives these from cgroups
// that it manages itself; ours are managed by the runtime, so runsc would show the
// host's size inside. (It would also never show less than two CPUs.)
func sizeSentry(args []string) ([]string, error) {
	boot, specFD := -1, -1
	for i, a := range args {
		if a == "boot" && boot < 0 {
			boot = i
		}
		if v, ok := flagValue(args, i, "spec-fd"); ok {
			fd, err := strconv.Atoi(v)
			if err != nil {
				return nil, fmt.Errorf("spec-fd %q is no number", v)
			}
			specFD = fd
		}
	}
	if boot < 0 || specFD < 0 {
		return args, nil
	}
	res, err := readResources(specFD)
	if err != nil {
		return nil, err
	}
	size := bootSize(res)
	out := append([]string(nil), args[:boot+1]...)
	for i := boot + 1; i < len(args); i++ {
		name, hasValue := flagName(args[i])
		if _, ours := size[name]; !ours {
			out = append(out, args[i])
		} else if !hasValue {
			i++ // the value is the next argument
		}
	}
	id := out[len(out)-1]
	out = out[:len(out)-1]
	for _, name := range []string{"cpu-num", "cpu-quota", "cpu-period", "total-memory"} {
		if v, ok := size[name]; ok {
			out = append(out, "--"+name+"="+v)
		}
	}
	return append(out, id), nil
}

// flagName returns the name of the flag that arg is, if it is one, and whether arg
// holds its value too.
func flagName(arg string) (name string, hasValue bool) {
	name, ok := strings.CutPrefix(arg, "--")
	if !ok {
		return "", false
	}
	name, _, hasValue = strings.Cut(name, "=")
	return name, hasValue
}

// flagValue returns the value of the flag called name if args[i] is it.
func flagValue(args []string, i int, name string) (string, bool) {
	got, hasValue := flagName(args[i])
	switch {
	case got != name:
		return "", false
	case hasValue:
		_, v, _ := strings.Cut(args[i], "=")
		return v, true
	case i+1 < len(args):
		return args[i+1], true
	}
	return "", false
}

// readResources reads the resources from the OCI spec behind fd. It leaves fd's
// offset alone: gVisor reads the spec after us.
func readResources(fd int) (*specs.LinuxResources, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat spec: %w", err)
	}
	buf := make([]byte, st.Size)
	for n := 0; n < len(buf); {
		k, err := unix.Pread(fd, buf[n:], int64(n))
		if err != nil {
			return nil, fmt.Errorf("read spec: %w", err)
		}
		if k == 0 {
			return nil, fmt.Errorf("read spec: %w", io.ErrUnexpectedEOF)
		}
		n += k
	}
	var spec struct {
		Linux struct {
			Resources *specs.LinuxResources `json:"resources"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(buf, &spec); err != nil {
		return nil, fmt.Errorf("decode spec: %w", err)
	}
	return spec.Linux.Resources, nil
}

// bootSize returns the boot flags, without dashes, that give a sentry the size res.
func bootSize(res *specs.LinuxResources) map[string]string {
	size := map[string]string{}
	if res == nil {
		return size
	}
	if c := res.CPU; c != nil && c.Quota != nil && c.Period != nil && *c.Quota > 0 && *c.Period > 0 {
		period := int64(*c.Period)
		size["cpu-num"] = strconv.FormatInt((*c.Quota+period-1)/period, 10)
		size["cpu-quota"] = strconv.FormatInt(*c.Quota, 10)
		size["cpu-period"] = strconv.FormatInt(period, 10)
	}
	if m := res.Memory; m != nil && m.Limit != nil && *m.Limit > 0 {
		size["total-memory"] = strconv.FormatInt(*m.Limit, 10)
	}
	return size
}
