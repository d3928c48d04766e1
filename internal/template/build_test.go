package template_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/template"
)

const demo = `
packages: [bash, git]
exclude: [/usr/share/man/*/*]
directories:
  - {path: /workspace, mode: "0777"}
files:
  - {path: /opt/tool/run, content: "#!/bin/sh\n", mode: "0750", owner: root}
env: {LANG: C.UTF-8}
commands:
  - {name: prove, run: 'test "$$" -lt 10; echo "$PWD $HOME" >/proof; cat /proc/self/mountinfo >/dev/null'}
cwd: /workspace
resources: {cpu: 1.5, memory_mb: 256}
`

func TestBuild(t *testing.T) {
	b := newBench(t, "")
	t.Setenv("HUTCH_TEST_SECRET", "swordfish")
	var steps []template.Step
	progress := func(p template.Progress) {
		if !slices.Contains(steps, p.Step) {
			steps = append(steps, p.Step)
		}
	}
	r := recipe(t, demo)
	if _, err := b.Lookup(r); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("lookup before the build: %v, want not found", err)
	}
	res, err := b.Build(t.Context(), r, template.Options{Progress: progress})
	if err != nil {
		t.Fatal(err)
	}
	if want := []template.Step{template.StepPlan, template.StepBootstrap, template.StepCustomise, template.StepImage, template.StepRegister}; !reflect.DeepEqual(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	if err := b.images.Verify(t.Context(), res.Image.Digest); err != nil {
		t.Error(err)
	}
	wantDate := time.Date(2026, 7, 11, 10, 16, 37, 0, time.UTC)
	if res.Cached || res.Recipe.Suite != "bookworm" || !res.SourceDate.Equal(wantDate) {
		t.Errorf("result %+v", res)
	}
	rec := res.Template()
	wantRec := hutch.Template{
		Name: "demo", BuildID: res.BuildID, Image: res.Image.Digest, SizeBytes: res.Image.SizeBytes, Recipe: res.Key,
		Defaults:  hutch.ProcessDefaults{Cwd: "/workspace", Env: map[string]string{"LANG": "C.UTF-8"}},
		Resources: hutch.Resources{MilliCPU: 1500, MemoryMB: 256, DiskMB: 10240, DiskTier: hutch.TierDisk},
		CreatedAt: res.BuiltAt,
	}
	if !reflect.DeepEqual(rec, wantRec) {
		t.Errorf("record %+v\nwant   %+v", rec, wantRec)
	}
	if calls := b.calls(t); len(calls) != 1 || !strings.Contains(calls[0], "--include=bash,git") || !strings.Contains(calls[0], "--dpkgopt=path-exclude=/usr/share/man/*/*") {
		t.Errorf("mmdebstrap was called with %q", calls)
	}
	// The build itself has the proxy and the passwords that the image must not have.
	conf, sources := read(t, filepath.Join(b.fake, "apt.conf")), read(t, filepath.Join(b.fake, "sources"))
	for _, want := range []string{`Acquire::http::Proxy "http://builder:hunter2@proxy.example:3142";`, `Dir::Etc::netrcparts "/etc/apt/auth.conf.d";`, `APT::Install-Recommends "false";`} {
		if !strings.Contains(conf, want) {
			t.Errorf("apt's settings for the build lack %s:\n%s", want, conf)
		}
	}
	if strings.Contains(conf, "Languages") || !strings.Contains(sources, "http://robot:letmein@mirror.example/debian") {
		t.Errorf("settings\n%s\nsources\n%s", conf, sources)
	}
	wantLeft := []string{"builds/" + res.Key + ".json", "builds/" + res.Key + ".log", "images/" + strings.TrimPrefix(res.Image.Digest, "sha256:") + ".erofs"}
	if got := b.left(t); !reflect.DeepEqual(got, wantLeft) {
		t.Errorf("in the directory: %q, want %q", got, wantLeft)
	}
	checkImage(t, res.Image.Path)
}

// checkImage looks into the image of the demo recipe.
func checkImage(t *testing.T, image string) {
	t.Helper()
	x := extract(t, image)
	for name, want := range map[string]string{
		"etc/resolv.conf":             "",
		"etc/machine-id":              "",
		"etc/hostname":                "sandbox\n",
		"etc/hosts":                   "127.0.0.1 localhost\n::1 ip6-localhost ip6-loopback\n",
		"etc/environment":             "LANG=\"C.UTF-8\"\n",
		"etc/shadow":                  "root:*:20645:0:99999:7:::\nuser:!:20645:0:99999:7:::\n",
		"etc/dpkg/dpkg.cfg.d/hutch":   "force-unsafe-io\npath-exclude=/usr/share/man/*/*\n",
		"etc/apt/apt.conf.d/81mirror": "Acquire::Check-Valid-Until \"false\";\n",
		"etc/apt/keyrings/m.gpg":      "a key",
		"etc/apt/sources.list.d/hutch.sources": "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n" +
			"Signed-By: /etc/apt/keyrings/m.gpg\n",
		"opt/tool/run": "#!/bin/sh\n",
		"proof":        "/ /root\n",
	} {
		if got, err := os.ReadFile(filepath.Join(x, name)); err != nil || string(got) != want {
			t.Errorf("/%s is %q (%v), want %q", name, got, err, want)
		}
	}
	for _, name := range []string{
		"var/log/apt/history.log", "root/.cache", "etc/passwd-", "var/lib/apt/lists/m_InRelease",
		"etc/apt/sources.list.d/0000build.sources", "etc/apt/apt.conf.d/99mmdebstrap",
	} {
		if exists(filepath.Join(x, name)) {
			t.Errorf("/%s is in the image", name)
		}
	}
	for name, want := range map[string]os.FileMode{
		"workspace": os.ModeDir | 0o777, "opt/tool/run": 0o750, "etc/shadow": 0o640,
		"var/lib/apt/lists/partial": os.ModeDir | 0o755, "var/log/apt": os.ModeDir | 0o755,
	} {
		if st, err := os.Stat(filepath.Join(x, name)); err != nil || st.Mode() != want {
			t.Errorf("/%s: %v, %v; want mode %v", name, st, err, want)
		}
	}
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hunter2", "letmein", "proxy.example", "swordfish"} {
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%q is in the image", secret)
		}
	}
}

func TestACachedBuildDoesNothing(t *testing.T) {
	b := newBench(t, "")
	r := recipe(t, demo)
	first, err := b.Build(t.Context(), r, template.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.open()
	r.Resources.MemoryMB = 1000 // no reason to build again, but what the record says
	again, err := b.Build(t.Context(), r, template.Options{})
	if err != nil || !again.Cached || again.Image != first.Image || again.BuildID != first.BuildID {
		t.Errorf("again: %+v, %v\nfirst: %+v", again, err, first)
	}
	if again.Template().Resources.MemoryMB != 1000 {
		t.Error("the cached result has the resources of the first recipe")
	}
	if looked, err := b.Lookup(r); err != nil || looked.BuildID != first.BuildID {
		t.Errorf("lookup: %+v, %v", looked, err)
	}
	if n := len(b.calls(t)); n != 1 {
		t.Errorf("mmdebstrap ran %d times, want once", n)
	}

	forced, err := b.Build(t.Context(), r, template.Options{Force: true})
	if err != nil || forced.Cached || forced.BuildID == first.BuildID {
		t.Errorf("forced: %+v, %v", forced, err)
	}
	if forced.Image.Digest != first.Image.Digest {
		t.Error("the same recipe and packages made another image")
	}

	if err := b.images.Remove(first.Image.Digest); err != nil {
		t.Fatal(err)
	}
	rebuilt, err := b.Build(t.Context(), r, template.Options{})
	if err != nil || rebuilt.Cached || rebuilt.Image.Digest != first.Image.Digest {
		t.Errorf("with the image gone: %+v, %v", rebuilt, err)
	}
	if n := len(b.calls(t)); n != 3 {
		t.Errorf("mmdebstrap ran %d times, want three times", n)
	}
}

func TestTheKeyFollowsTheMachinesSources(t *testing.T) {
	b := newBench(t, "")
	r := recipe(t, "")
	if _, err := b.Build(t.Context(), r, template.Options{}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(b.root, "etc/apt/sources.list"), "deb http://other.example/debian bookworm main\n", 0o644)
	if _, err := b.Lookup(r); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("from other sources: %v, want not found", err)
	}
}

func TestFailedBuilds(t *testing.T) {
	marker := fmt.Sprintf("98765.%d", os.Getpid())
	tests := map[string]struct {
		do, recipe string
		before     func(*testing.T, *bench)
		step       template.Step
		command    string
		want       []string // in the error
		lines      int      // of output in the error; -1 = any number
	}{
		"bootstrap": {
			do:   "i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo \"E: line $i\"; done; sleep " + marker + " & exit 25",
			step: template.StepBootstrap, want: []string{"exit status 25", "E: line 30", "E: line 11\n"}, lines: 20,
		},
		"no package index": {do: "rm \"$tree\"/var/lib/apt/lists/*Release", step: template.StepBootstrap, want: []string{"no package index"}, lines: -1},
		"command": {
			recipe: "commands: [{name: first, run: echo fine}, {name: compile it, run: 'echo out of cheese >&2; exit 3; echo no'}]",
			step:   template.StepCustomise, command: "compile it", want: []string{"customise (compile it)", "exit status 3", "out of cheese"}, lines: 1,
		},
		"command stops at its first failure": {
			recipe: "commands: [{name: a, run: \"cat /nosuch\\necho went on\"}]",
			step:   template.StepCustomise, command: "a", want: []string{"exit status 1", "/nosuch"}, lines: 1,
		},
		"command over its time": {
			recipe: "commands: [{name: hang, run: 'echo begun; sleep " + marker + "', timeout: 5s}]", // the tree is entered in it too
			step:   template.StepCustomise, command: "hang", want: []string{"timed out after 5s", "begun"}, lines: 1,
		},
		"a link out of the tree": {
			do:     "rm -r \"$tree/opt\" 2>/dev/null || true; ln -s \"$FAKE\" \"$tree/opt\"",
			recipe: "files: [{path: /opt/planted, content: x}]", step: template.StepCustomise, want: []string{"/opt/planted", "escapes"}, lines: -1,
		},
		"signing key gone": {
			before: func(t *testing.T, b *bench) {
				if err := os.Remove(filepath.Join(b.root, "etc/apt/keyrings/m.gpg")); err != nil {
					t.Fatal(err)
				}
			},
			step: template.StepCustomise, want: []string{"signing key"}, lines: -1,
		},
		"image": {
			before: func(t *testing.T, b *bench) {
				write(t, filepath.Join(b.fake, "bin/mkfs.erofs"), "#!/bin/sh\necho no space left; exit 1\n", 0o755)
			},
			step: template.StepImage, want: []string{"mkfs.erofs", "no space left"}, lines: 1,
		},
		"image that is none": {
			before: func(t *testing.T, b *bench) {
				write(t, filepath.Join(b.fake, "bin/mkfs.erofs"), "#!/bin/sh\nfor a; do o=$p p=$a; done; echo junk >\"$o\"\n", 0o755)
			},
			step: template.StepRegister, want: []string{"not an EROFS image"},
		},
		"no suite here": {
			recipe: "suite: trixie", step: template.StepPlan, want: []string{`"trixie"`, "configured suites: bookworm", "apt-get update"},
		},
		"no distribution": {
			before: func(t *testing.T, b *bench) { write(t, filepath.Join(b.root, "etc/os-release"), "ID=x\n", 0o644) },
			step:   template.StepPlan, want: []string{"VERSION_CODENAME"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.do)
			if tt.before != nil {
				tt.before(t, b)
			}
			_, err := b.Build(t.Context(), recipe(t, tt.recipe), template.Options{})
			var e *template.StepError
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want a StepError", err)
			}
			if e.Step != tt.step || e.Command != tt.command || tt.lines >= 0 && len(e.Lines) != tt.lines {
				t.Errorf("step %s (%s) with %d lines, want %s (%s) with %d", e.Step, e.Command, len(e.Lines), tt.step, tt.command, tt.lines)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q:\n%v", want, err)
				}
			}
			if left := b.left(t); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
			if exists(filepath.Join(b.fake, "planted")) {
				t.Error("the build wrote outside of its tree")
			}
			eventually(t, "the build's processes have ended", func() bool { return !running(marker) })
		})
	}
}

func TestMissingToolsAreNamed(t *testing.T) {
	b := newBench(t, "")
	t.Setenv("PATH", t.TempDir())
	_, err := b.Build(t.Context(), recipe(t, ""), template.Options{})
	for _, want := range []string{"mmdebstrap, mkfs.erofs", "apt-get install -y mmdebstrap erofs-utils"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

func TestCancelEndsEverythingAndLeavesNothing(t *testing.T) {
	marker := fmt.Sprintf("98764.%d", os.Getpid())
	// One that left its session and its parent, and one that holds the output.
	b := newBench(t, "mount -t tmpfs t \"$tree/tmp\"; setsid sleep "+marker+" >/dev/null 2>&1 & echo begun >\"$FAKE/begun\"; sleep "+marker)
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Build(ctx, recipe(t, ""), template.Options{})
		done <- err
	}()
	eventually(t, "the build is under way", func() bool { return exists(filepath.Join(b.fake, "begun")) && running(marker) })
	cancel(gone)
	err := <-done
	var e *template.StepError
	if !errors.Is(err, gone) || !errors.As(err, &e) || e.Step != template.StepBootstrap {
		t.Errorf("got %v, want the cause in step bootstrap", err)
	}
	eventually(t, "the build's processes have ended", func() bool { return !running(marker) })
	if left := b.left(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestBuildsOfOneKeyHappenOnce(t *testing.T) {
	b := newBench(t, "touch \"$FAKE/begun\"; while [ ! -e \"$FAKE/go\" ]; do sleep 0.02; done")
	r := recipe(t, demo)
	const callers = 4
	results := make([]template.Result, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			var err error
			if results[i], err = b.Build(t.Context(), r, template.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	other := builderProcess(t, b) // waits in another process
	eventually(t, "one builds", func() bool { return exists(filepath.Join(b.fake, "begun")) })

	// Who waits can still leave.
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := b.Build(ctx, r, template.Options{}); !errors.Is(err, gone) || !strings.Contains(err.Error(), "wait for another build") {
		t.Errorf("a waiting caller who leaves: %v", err)
	}

	write(t, filepath.Join(b.fake, "go"), "", 0o644)
	wg.Wait()
	if out, err := other(); err != nil || !strings.Contains(out, results[0].Image.Digest) {
		t.Errorf("the other process: %v\n%s", err, out)
	}
	built := 0
	for _, res := range results {
		if !res.Cached {
			built++
		}
		if res.Image != results[0].Image || res.BuildID != results[0].BuildID {
			t.Errorf("%+v\n%+v", res, results[0])
		}
	}
	if calls := len(b.calls(t)); calls != 1 || built > 1 {
		t.Errorf("mmdebstrap ran %d times for %d results that were built, want once", calls, built)
	}
	if locks, err := os.ReadDir(filepath.Join(b.dir, "locks")); err != nil || len(locks) != 0 {
		t.Errorf("locks left: %v, %v", locks, err)
	}
}

func TestAKilledBuildIsSweptByTheNext(t *testing.T) {
	marker := fmt.Sprintf("98763.%d", os.Getpid())
	b := newBench(t, "[ -e \"$FAKE/go\" ] || { touch \"$FAKE/begun\"; setsid sleep "+marker+" & sleep "+marker+"; }")
	wait := builderProcess(t, b)
	eventually(t, "the other process builds", func() bool { return exists(filepath.Join(b.fake, "begun")) && running(marker) })
	pid := lockHolder(t, b)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if out, err := wait(); err == nil {
		t.Fatalf("the killed process ended well:\n%s", out)
	}
	eventually(t, "the killed build's processes have ended", func() bool { return !running(marker) })
	stale, err := filepath.Glob(filepath.Join(b.dir, "work", "*"))
	if err != nil || len(stale) != 1 {
		t.Fatalf("remains: %v, %v; want one directory", stale, err)
	}
	// As if somebody had mounted something there: what it shows must survive.
	precious := filepath.Join(b.fake, "precious")
	write(t, precious+"/file", "x", 0o644)
	mountpoint := filepath.Join(stale[0], "tree", "tmp")
	if err := unix.Mount(precious, mountpoint, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(mountpoint, unix.MNT_DETACH) })

	write(t, filepath.Join(b.fake, "go"), "", 0o644)
	// Another recipe: remains of any key are swept.
	if _, err := b.Build(t.Context(), recipe(t, "packages: [zsh]"), template.Options{}); err != nil {
		t.Fatal(err)
	}
	if exists(stale[0]) {
		t.Error("the remains are still there")
	}
	if !exists(precious + "/file") {
		t.Error("sweeping removed files through a mount")
	}
}

func TestSweepSparesABuildUnderWay(t *testing.T) {
	b := newBench(t, "case $* in *zsh*) ;; *) touch \"$FAKE/begun\"; while [ ! -e \"$FAKE/go\" ]; do sleep 0.02; done;; esac")
	done := make(chan error)
	go func() {
		_, err := b.Build(t.Context(), recipe(t, ""), template.Options{})
		done <- err
	}()
	eventually(t, "one builds", func() bool { return exists(filepath.Join(b.fake, "begun")) })
	if _, err := b.Build(t.Context(), recipe(t, "packages: [zsh]"), template.Options{}); err != nil {
		t.Error(err)
	}
	write(t, filepath.Join(b.fake, "go"), "", 0o644)
	if err := <-done; err != nil {
		t.Errorf("the build that was under way: %v", err)
	}
}

// builderEnv makes the test binary build the demo recipe and print the digest.
const builderEnv = "HUTCH_TEST_BUILD"

// builderProcess starts a build of the demo recipe in another process. wait returns
// its output and how it ended.
func builderProcess(t *testing.T, b *bench) (wait func() (string, error)) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBuilderProcess$")
	cmd.Env = append(os.Environ(), builderEnv+"="+b.dir+":"+b.root)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(b.fake, "pid"), fmt.Sprint(cmd.Process.Pid), 0o644)
	return func() (string, error) {
		err := cmd.Wait()
		return out.String(), err
	}
}

// lockHolder is the process that builderProcess started.
func lockHolder(t *testing.T, b *bench) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.fake, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(data), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestBuilderProcess is the body of that other process.
func TestBuilderProcess(t *testing.T) {
	dir, root, ok := strings.Cut(os.Getenv(builderEnv), ":")
	if !ok {
		t.Skip("for builderProcess only")
	}
	b := &bench{dir: dir, root: root}
	b.open()
	res, err := b.Build(t.Context(), recipe(t, demo), template.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(res.Image.Digest)
}

func TestTheStoreMayBeCollectedMeanwhile(t *testing.T) {
	b := newBench(t, "")
	res, err := b.Build(t.Context(), recipe(t, ""), template.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.images.Pin(res.Image.Digest, "template.demo"); err != nil {
		t.Fatal(err)
	}
	removed, err := b.images.GC(t.Context(), func(string) bool { return false })
	if err != nil || len(removed) != 0 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, err := b.Lookup(recipe(t, "")); err != nil {
		t.Error(err)
	}
	if _, err := rootfs.New(rootfs.Config{Dir: b.dir}).Path(res.Image.Digest); err != nil {
		t.Error(err)
	}
}
