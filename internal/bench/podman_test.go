package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// fakePodman runs the command in the root that it is given, leaves a process in a control group
// below the one that it is told, as the real one does, and notes how it was called.
const fakePodman = `#!/bin/sh
[ "$1" = --version ] && { echo podman version 0.1; echo more; exit; }
printf '%s\n' "$*" >>"$HOME/called"
cat "$CONTAINERS_CONF" >/dev/null || exit 1
while [ "$1" != --rootfs ]; do
	[ "$1" != --cgroup-parent ] || group=$2
	shift
done
for h in $(sed -n 's/^[^ ]* [^ ]* [^ ]* [^ ]* \([^ ]*\) .* - cgroup2\{0,1\} .*/\1/p' /proc/self/mountinfo | head -n 1); do
	mkdir -p "$h$group/conmon"
	{ echo 0 >"$h$group/conmon/cgroup.procs"; exec sleep 0.05; } </dev/null >/dev/null 2>&1 &
done
root=${2%:O}
[ "$root" != "$2" ] || exit 1
shift 2
exec chroot "$root" "$@"
`

// broken is a podman that does not work here.
const broken = "#!/bin/sh\necho no such runtime >&2\nexit 125\n"

// script writes an executable.
func script(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "it")
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// rootImage is a root image with /bin/echo.
func rootImage(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("busybox is not installed")
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `mkdir -p "$1/root/bin" && cp "$0" "$1/root/bin/echo" && mkfs.erofs -Enoinline_data "$1/image" "$1/root"`, busybox, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("make an image: %v\n%s", err, out)
	}
	return filepath.Join(dir, "image")
}

var likeThat = Sandbox{Image: "sha256:abc", Resources: hutch.Resources{MilliCPU: 1500, MemoryMB: 512, Pids: 128}}

func testPodman(t *testing.T) *Podman {
	t.Helper()
	p := &Podman{Dir: t.TempDir(), Groups: fmt.Sprintf("hutch-bench-test-%d", os.Getpid())}
	t.Cleanup(func() {
		if err := p.close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		all, err := mountTable()
		if err != nil || slices.ContainsFunc(all, func(m mountPoint) bool { return strings.HasPrefix(m.dir, p.Dir) }) {
			t.Errorf("mounts are left below %s, or %v", p.Dir, err)
		}
		if dirs, err := groupDirs(p.Groups); err != nil || len(dirs) > 0 {
			t.Errorf("control groups are left: %v, %v", dirs, err)
		}
	})
	return p
}

func TestPodman(t *testing.T) {
	image := rootImage(t)
	p := testPodman(t)
	p.Exe, p.Crun = script(t, fakePodman), script(t, "#!/bin/sh\necho crun version 0.2\n")
	subs, all := p.subjects(t.Context(), likeThat, func(digest string) (string, error) {
		if digest != likeThat.Image {
			return "", errors.New("no such image")
		}
		return image, nil
	})
	if len(subs) != 1 || len(all) != 2 || subs[0].name != SubjectCrun {
		t.Fatalf("subjects %+v of %+v, want one of two", subs, all)
	}
	if got, want := all[0].Is, "podman version 0.1, crun version 0.2"; all[0].LeftOut != "" || got != want {
		t.Errorf("it is %q (%s), want %q", got, all[0].LeftOut, want)
	}
	if all[1].Subject != SubjectRunsc || all[1].LeftOut != "no stock runsc was named" {
		t.Errorf("the one that is not there: %+v", all[1])
	}
	c := &clock{us: map[string]int64{}}
	if err := subs[0].run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if first, whole := c.us[MetricFirstOutput], c.us[MetricWhole]; first <= 0 || whole < first {
		t.Errorf("first output after %d µs, its end after %d", first, whole)
	}
	if dirs, err := groupDirs(p.Groups); err != nil || len(dirs) != 1 {
		t.Errorf("a run leaves control groups: %v, %v", dirs, err)
	}
	called, err := os.ReadFile(filepath.Join(p.Dir, "called"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(called)), "\n")
	if len(lines) != 2 { // the trial, and the run
		t.Fatalf("it was called %d times:\n%s", len(lines), called)
	}
	for _, want := range []string{
		"--root " + p.Dir, "--runtime " + p.Crun, "run --rm", "--network none", "--cpus 1.5", "--memory 512m", "--pids-limit 128", "--ulimit nofile=", "--ulimit nproc=",
		"--cgroup-parent /" + p.Groups + "/2 ", ":O /bin/echo hi",
	} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("%q is not in %q", want, lines[1])
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errLimit)
	if err := subs[0].run(ctx, c); !errors.Is(err, errLimit) {
		t.Errorf("once the benchmark has ended: %v", err)
	}
	if strings.Contains(all[0].Command, p.Dir) || !strings.Contains(all[0].Command, "--rootfs DIR/root:O /bin/echo hi") {
		t.Errorf("the command is told as %q", all[0].Command)
	}
}

// TestPodmanLeftOut: what is not installed or does not work here is told, and nothing fails.
func TestPodmanLeftOut(t *testing.T) {
	image := func(string) (string, error) { return rootImage(t), nil }
	for name, tt := range map[string]struct {
		exe, crun, runsc string
		image            func(string) (string, error)
		want             [2]string
	}{
		"no podman":     {"", "/bin/true", "/bin/true", image, [2]string{"podman is not installed", "podman is not installed"}},
		"no runtimes":   {script(t, fakePodman), "", "", image, [2]string{"crun is not installed", "no stock runsc was named"}},
		"it is broken":  {script(t, broken), "/bin/true", "/bin/true", image, [2]string{"no such runtime", "no such runtime"}},
		"another print": {script(t, "#!/bin/sh\necho ho\n"), "/bin/true", "", image, [2]string{`not with 0 and "hi\n"`, "no stock runsc was named"}},
		"no image": {script(t, fakePodman), "/bin/true", "", func(string) (string, error) {
			return "", errors.New("it is elsewhere")
		}, [2]string{"it is elsewhere", "it is elsewhere"}},
		"no image in it": {script(t, fakePodman), "/bin/true", "", func(string) (string, error) {
			return "/dev/null", nil
		}, [2]string{"mount the root image", "mount the root image"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPodman(t)
			p.Exe, p.Crun, p.Runsc = tt.exe, tt.crun, tt.runsc
			subs, all := p.subjects(t.Context(), likeThat, tt.image)
			if len(subs) != 0 || len(all) != 2 {
				t.Fatalf("subjects %+v of %+v", subs, all)
			}
			for i, a := range all {
				if !strings.Contains(a.LeftOut, tt.want[i]) {
					t.Errorf("%s is left out because of %q, want %q", a.Subject, a.LeftOut, tt.want[i])
				}
			}
		})
	}
	var none *Podman
	if subs, all := none.subjects(t.Context(), likeThat, image); subs != nil || all != nil || none.close(t.Context()) != nil {
		t.Errorf("where there is nothing to compare with: %v, %v", subs, all)
	}
}

// TestEndGroups: processes that are left are waited for, and killed if need be.
func TestEndGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	all, err := mountTable()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(m mountPoint) bool { return m.kind == "cgroup" || m.kind == "cgroup2" })
	if i < 0 {
		t.Skip("no control groups are mounted")
	}
	name := fmt.Sprintf("hutch-bench-test-%d", os.Getpid())
	below := filepath.Join(all[i].dir, name, "1", "container")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := endGroups(t.Context(), name, true); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `echo 0 >"$0/cgroup.procs" && echo in && exec sleep 1000`, below)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errLimit)
	defer cancel()
	if err := endGroups(ctx, name, false); !errors.Is(err, errLimit) {
		t.Errorf("with a process in it: %v", err)
	}
	if err := endGroups(ctx, name, true); err != nil {
		t.Errorf("killed: %v", err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended by itself")
	}
	if dirs, err := groupDirs(name); err != nil || len(dirs) > 0 {
		t.Errorf("left: %v, %v", dirs, err)
	}
}

// TestRemoveIdle: the state of somebody's containers stays.
func TestRemoveIdle(t *testing.T) {
	for name, tt := range map[string]struct {
		files []string
		stays bool
	}{
		"nothing in it":   {nil, false},
		"runsc's own":     {[]string{"null-netns"}, false},
		"a container":     {[]string{"x_sandbox:x.state"}, true},
		"and runsc's own": {[]string{"null-netns", "x_sandbox:x.state"}, true},
	} {
		dir := filepath.Join(t.TempDir(), "runsc")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range tt.files {
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := removeIdle(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		left, err := os.ReadDir(dir)
		if tt.stays != (err == nil) || tt.stays && len(left) != len(tt.files) {
			t.Errorf("%s: left %v, %v", name, left, err)
		}
	}
	if err := removeIdle(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("where there is none: %v", err)
	}
}

// against is a report with podman in it.
func against(t *testing.T, kind string, podmanUS int64) *Report {
	t.Helper()
	rep := newReport(kind, Settings{N: 2, Parallel: 1, Baseline: true})
	rep.Alternatives = []Alternative{
		{Subject: SubjectCrun, LeftOut: "crun is not installed"},
		{Subject: SubjectRunsc, Is: "podman version 4", Command: "podman run"},
	}
	var runs []Run
	for i := range 2 {
		runs = append(runs, run(SubjectHutch, i+1, 100_000), run(SubjectFloor, i+1, 80_000), run(SubjectRunsc, i+1, podmanUS))
	}
	rep, err := rep.finish(runs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestPodmanClaims(t *testing.T) {
	for _, kind := range []string{"create", "prepared"} {
		for us, within := range map[int64]bool{500_000: true, 499_000: false} {
			rep := against(t, kind, us)
			i := slices.IndexFunc(rep.Claims, func(c Claim) bool { return strings.Contains(c.What, "podman") })
			if i < 0 {
				t.Fatalf("%s: no claim in %+v", kind, rep.Claims)
			}
			if c := rep.Claims[i]; c.Within != within || !c.AtLeast || c.Limit != PodmanLimit || c.Unit != "×" {
				t.Errorf("%s: podman takes %d µs, hutch 100,000: %+v", kind, us, c)
			}
		}
	}
	if rep := sample(t); len(rep.Claims) > 0 {
		t.Errorf("without podman there are claims: %+v", rep.Claims)
	}
}

// TestRatiosOfOthers: every subject has its own comparison, and limits are of the floor's.
func TestRatiosOfOthers(t *testing.T) {
	rep := against(t, "create", 400_000)
	if x := rep.Summary.Ratios; len(x) != 2 || x[0].Of != "" || x[0].P50 != 1.25 || x[1].Of != SubjectRunsc || x[1].P50 != 0.25 {
		t.Errorf("ratios %+v", x)
	}
	if v := rep.Verdict; v == nil || *v != (Verdict{MetricFirstOutput, Limit, true, true, true}) {
		t.Errorf("verdict %+v", v)
	}
	var b strings.Builder
	if err := rep.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| hutch / floor | of p50 |", "| create, to first output | 1.25 |",
		"| hutch / podman with runsc | of p50 |", "| create, to first output | 0.25 |",
		"| create, to first output | podman with runsc | 2 | 400.0 |",
		"of hutch's at p50 | 4 × | at least 5 × | MISSED |",
		"Not measured: podman with crun. crun is not installed.",
		"| podman with runsc | podman version 4; cold; clock from the start of the process: `podman run` |",
		"Failed runs: hutch 0, floor 0, podman with runsc 0.",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "hutch / podman with crun") {
		t.Error("there is a table of what was left out")
	}
}
