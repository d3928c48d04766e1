package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What else makes a place for a command, and may be installed.
const (
	SubjectCrun  = "podman with crun"  // a container
	SubjectRunsc = "podman with runsc" // the same isolator as ours, as it is usually run
)

// PodmanLimit is how many times as fast as podman with stock runsc a first output must be here, at
// the median.
const PodmanLimit = 5

// Podman measures `podman run` with what is installed on this machine. It has records and
// containers of its own, and a configuration of its own, so that neither the machine's
// weighs on the figures nor the figures on the machine.
type Podman struct {
	Dir    string // of its own; what it is for the whole of a benchmark. Short: sockets live below it
	Groups string // name of the control group that containers get theirs below
	// The executables. An empty one is not there, and what needs it is left out, which
	// the report says.
	Exe, Crun, Runsc string

	runs   atomic.Int64 // numbers the groups of runs
	failed atomic.Bool  // a run left a container, maybe
	fresh  []string     // of runtimeDirs, those that were not there before
}

// runtimeDirs are where the runtimes keep the state of containers. They are not told other places:
// podman does not tell the process that cleans up behind a container.
var runtimeDirs = []string{"/run/crun", "/run/runsc"}

// Alternative is a subject beside hutch and floor, with what it takes to measure it again.
type Alternative struct {
	Subject string `json:"subject"`
	Is      string `json:"is,omitempty"`      // versions
	Command string `json:"command,omitempty"` // with DIR for the directory of the benchmark, and the runtime by its name alone
	LeftOut string `json:"left_out,omitempty"`
}

// places are where things are below Podman.Dir. Their names are short for the sake of sockets.
const (
	podmanRoot = "root" // the root image, mounted
	podmanConf = "conf"
)

// podmanConfig is all the configuration there is. Locks in files: those in shared memory have
// one name for all podmans of a machine. No log and no events, as nobody reads them.
const podmanConfig = `[containers]
log_driver = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
[network]
network_config_dir = %q
`

// subjects are those that work here, and all alternatives. A nil Podman has none. What is made
// for them is removed by [Podman.close], which must be called in any case.
func (p *Podman) subjects(ctx context.Context, like Sandbox, imagePath func(digest string) (string, error)) (subs []subject, all []Alternative) {
	if p == nil {
		return nil, nil
	}
	ready := p.prepare(ctx, like.Image, imagePath)
	for _, rt := range []struct{ subject, exe, lacks string }{
		{SubjectCrun, p.Crun, "crun is not installed"},
		{SubjectRunsc, p.Runsc, "no stock runsc was named"},
	} {
		a := Alternative{Subject: rt.subject}
		err := ready
		if err == nil && rt.exe == "" {
			err = errors.New(rt.lacks)
		}
		if err == nil {
			a.Is = strings.Join(nonEmpty(p.versionOf(ctx, p.Exe), p.versionOf(ctx, rt.exe)), ", ")
			a.Command = strings.ReplaceAll(strings.Join(append([]string{"podman"}, p.args(like, filepath.Base(rt.exe), p.Groups)...), " "), p.Dir, "DIR")
			err = p.run(ctx, like, rt.exe, &clock{us: map[string]int64{}})
		}
		if err != nil {
			a.LeftOut = err.Error()
		} else {
			subs = append(subs, subject{rt.subject, func(ctx context.Context, t *clock) error { return p.run(ctx, like, rt.exe, t) }})
		}
		all = append(all, a)
	}
	return subs, all
}

// prepare mounts the root image and writes the configuration. An error says why podman can't be
// measured here.
func (p *Podman) prepare(ctx context.Context, digest string, imagePath func(digest string) (string, error)) error {
	if p.Exe == "" {
		return errors.New("podman is not installed")
	}
	image, err := imagePath(digest)
	if err != nil {
		return fmt.Errorf("find root image: %w", err)
	}
	for _, d := range runtimeDirs {
		if _, err := os.Stat(d); errors.Is(err, fs.ErrNotExist) {
			p.fresh = append(p.fresh, d)
		}
	}
	for _, d := range []string{podmanRoot, podmanConf} {
		if err := os.MkdirAll(filepath.Join(p.Dir, d), 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(p.config(), fmt.Appendf(nil, podmanConfig, filepath.Join(p.Dir, podmanConf, "net")), 0o600); err != nil {
		return fmt.Errorf("write podman's configuration: %w", err)
	}
	// mount(8), since it finds a loop device.
	said, err := exec.CommandContext(ctx, "mount", "-t", "erofs", "-o", "ro,loop", image, filepath.Join(p.Dir, podmanRoot)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mount the root image: %w: %s", err, bytes.TrimSpace(said))
	}
	return nil
}

func (p *Podman) config() string { return filepath.Join(p.Dir, podmanConf, "containers.conf") }

// args are podman's for one run: the sizes of like, the root image read-only with a layer to
// write to on top (:O), no network.
func (p *Podman) args(like Sandbox, runtime, group string) []string {
	q := like.Resources
	return append(p.global(runtime),
		"run", "--rm", "--network", "none", "--cgroup-parent", "/"+group,
		"--cpus", strconv.FormatFloat(float64(q.MilliCPU)/1000, 'f', -1, 64), "--memory", fmt.Sprintf("%dm", q.MemoryMB),
		"--pids-limit", strconv.Itoa(q.Pids),
		"--ulimit", ulimit("nofile", unix.RLIMIT_NOFILE, math.MaxInt64), "--ulimit", ulimit("nproc", unix.RLIMIT_NPROC, pidMax()),
		"--rootfs", filepath.Join(p.Dir, podmanRoot)+":O",
		helloArgv[0], helloArgv[1])
}

// global are the arguments that every command of podman's has.
func (p *Podman) global(runtime string) []string {
	below := func(name string) string { return filepath.Join(p.Dir, name) }
	return []string{
		"--root", below("storage"), "--runroot", below("run"), "--tmpdir", below("tmp"), "--storage-driver", "vfs", "--runtime", runtime,
	}
}

// ulimit is the limit of this process, and most at most, for what runs in a container: podman's own
// defaults take a right that not even root has everywhere (CAP_SYS_RESOURCE).
func ulimit(name string, resource int, most uint64) string {
	var own unix.Rlimit
	if unix.Getrlimit(resource, &own) == nil {
		most = min(most, own.Max)
	}
	return fmt.Sprintf("%s=%d:%[2]d", name, most)
}

// pidMax is how many processes the host has numbers for, which podman limits itself to.
func pidMax() uint64 {
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			return n
		}
	}
	return 1 << 15 // Linux's default
}

// env is all the environment that podman and its runtimes have.
func (p *Podman) env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.Dir, "XDG_RUNTIME_DIR=" + p.Dir, "CONTAINERS_CONF=" + p.config()}
}

// run runs one container, from podman's start to its end, and waits, off the clock, until
// nothing of it is left. It is finished also when ctx ends: a podman that is killed leaves what it was
// making.
func (p *Podman) run(ctx context.Context, like Sandbox, runtime string, t *clock) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runLimit)
	defer cancel()
	group := filepath.Join(p.Groups, strconv.FormatInt(p.runs.Add(1), 10))
	defer func() {
		if err != nil {
			p.failed.Store(true)
		}
		if gerr := endGroups(ctx, group, err != nil); gerr != nil {
			err = errors.Join(err, fmt.Errorf("end of the container: %w", gerr))
		}
	}()
	cmd := exec.CommandContext(ctx, p.Exe, p.args(like, runtime, group)...)
	cmd.Env = p.env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for us alone
	cmd.WaitDelay = time.Second                           // for what of it still holds its output
	var said bytes.Buffer
	begun := time.Now()
	first := firstByte(func(at time.Time) { t.book(MetricFirstOutput, at.Sub(begun)) })
	cmd.Stdout, cmd.Stderr = first, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("podman run: %w: %.500s", err, bytes.TrimSpace(said.Bytes()))
	}
	t.since(MetricWhole, begun)
	return first.check(0, helloText)
}

// close removes what runs have left on this host, but for the directory itself. It takes
// its time, also when ctx has ended.
func (p *Podman) close(ctx context.Context) error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if p.failed.Load() {
		for _, rt := range nonEmpty(p.Crun, p.Runsc) {
			cmd := exec.CommandContext(ctx, p.Exe, append(p.global(rt), "rm", "--all", "--force", "--time", "0")...)
			cmd.Env = p.env()
			_ = cmd.Run() // it may be what does not work; what it leaves is found below
		}
	}
	err := errors.Join(endGroups(ctx, p.Groups, true), unmountBelow(p.Dir))
	for _, d := range p.fresh {
		err = errors.Join(err, removeIdle(d))
	}
	return err
}

// removeIdle removes a runtime's directory if there is no container's state in it.
func removeIdle(dir string) error {
	const null = "null-netns" // runsc's own, mounted
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || slices.ContainsFunc(all, func(e fs.DirEntry) bool { return e.Name() != null }) {
		return err
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// versionOf is the first line of what a program says of its version; empty if it says nothing.
func (p *Podman) versionOf(ctx context.Context, exe string) string {
	cmd := exec.CommandContext(ctx, exe, "--version")
	cmd.Env = p.env()
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

// podmanClaims is what we hold ourselves to, of the first output.
func podmanClaims(s Summary) []Claim {
	hutch, runsc := s.of(MetricFirstOutput, SubjectHutch), s.of(MetricFirstOutput, SubjectRunsc)
	if hutch.N == 0 || runsc.N == 0 {
		return nil
	}
	c := atLeast("first output of podman with stock runsc, of hutch's at p50", over(runsc.P50, hutch.P50), PodmanLimit)
	c.Unit = "×"
	return []Claim{c}
}
