package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/guest/guesttest"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/template/imagetest"
)

// The guest agent keeps the contract of the profile locked in a real sandbox too.
func TestLockedGuestContractInASandbox(t *testing.T) {
	t.Parallel()
	for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
		t.Run(string(tier), func(t *testing.T) {
			t.Parallel()
			sb := machine(t, tier, func(s *runtime.Spec) { s.Profile = hutch.ProfileLocked })
			guesttest.Locked(t, func(t *testing.T) *guesttest.Client { return guestOf(t, sb) })
		})
	}
}

// A profile is chosen at create, or by the template, and shown; another is refused.
func TestProfileOfASandbox(t *testing.T) {
	s := common(t)
	_, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", Profile: "half"})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != hutch.CodeBadRequest || e.Field != "profile" {
		t.Fatalf("create with a profile that there is not: %v", err)
	}
	if base, err := s.client.Template(t.Context(), "base"); err != nil || base.Profile != "" {
		t.Errorf("base has the profile %q, %v", base.Profile, err)
	}
	cache := os.Getenv("HUTCH_CACHE_DIR")
	if cache == "" {
		cache = s.dir
	}
	t.Cleanup(func() {
		if err := s.client.DeleteTemplate(context.WithoutCancel(t.Context()), "base-locked"); err != nil {
			t.Error(err)
		}
	})
	buildTemplate(t, s, cache, "base", "--name", "base-locked", "--profile", "locked")
	buildTemplate(t, s, cache, "base", "--name", "base-locked") // which changes nothing
	if tpl, err := s.client.Template(t.Context(), "base-locked"); err != nil || tpl.Profile != hutch.ProfileLocked {
		t.Errorf("template: %+v, %v", tpl, err)
	}
	for _, c := range []struct {
		template      string
		profile, want hutch.Profile
		uid           string
	}{
		{"base", "", hutch.ProfileRoot, "0"},
		{"base", hutch.ProfileLocked, hutch.ProfileLocked, "1000"},
		{"base-locked", "", hutch.ProfileLocked, "1000"},
		{"base-locked", hutch.ProfileRoot, hutch.ProfileRoot, "0"},
	} {
		sb := s.create(t, api.CreateSandbox{Template: c.template, Profile: c.profile})
		got, err := s.client.Sandbox(t.Context(), sb.ID)
		if err != nil || sb.Profile != c.want || got.Profile != c.want {
			t.Errorf("%+v: created %q, shown %q, %v", c, sb.Profile, got.Profile, err)
		}
		for listed, err := range s.client.Sandboxes(t.Context(), client.SandboxFilter{}) {
			if err != nil || listed.ID == sb.ID && listed.Profile != c.want {
				t.Errorf("%+v: listed as %q, %v", c, listed.Profile, err)
			}
		}
		if uid := s.out(t, sb.ID, "id -u"); uid != c.uid {
			t.Errorf("%+v: a command runs as %s", c, uid)
		}
	}
}

// Whoever asks for root in a locked sandbox is told no, by every call that takes a user.
func TestLockedSandboxRefusesRoot(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{Profile: hutch.ProfileLocked}).ID
	ctx := t.Context()
	for _, user := range []string{"root", "0", "000", "root:root", "0:1000", "user:0", "user:root", "user:shadow", "5000:0"} {
		f := client.File{Sandbox: sb, Path: "/tmp/by-root", User: user}
		calls := map[string]func() error{
			"exec": func() error { _, err := s.client.Exec(ctx, sb, api.ExecRequest{Cmd: "id", User: user}); return err },
			"start": func() error {
				_, err := s.client.StartExec(ctx, sb, api.ExecRequest{Argv: []string{"id"}, User: user})
				return err
			},
			"session": func() error {
				_, err := s.client.Exec(ctx, sb, api.ExecRequest{Cmd: "id", User: user, Shell: "rooty"})
				return err
			},
			"stream": func() error {
				_, err := s.client.Stream(ctx, sb, api.ExecRequest{Cmd: "id", User: user}, client.StreamOptions{}, func(client.Output) error { return nil })
				return err
			},
			"stat": func() error { _, err := s.client.Stat(ctx, f); return err },
			"read": func() error { _, err := s.client.ReadFile(ctx, f, &bytes.Buffer{}); return err },
			"write": func() error {
				_, err := s.client.WriteFile(ctx, f, strings.NewReader("x"), client.WriteOptions{})
				return err
			},
			"mkdir": func() error {
				_, err := s.client.MakeDir(ctx, sb, api.MakeDirectory{Path: "/tmp/by-root", User: user})
				return err
			},
			"remove": func() error { return s.client.RemoveFile(ctx, f, false) },
			"unpack": func() error {
				_, err := s.client.WriteArchive(ctx, f, bytes.NewReader(rootsProgram(t)), true)
				return err
			},
			"archive": func() error { return s.client.ReadArchive(ctx, f, client.ArchiveOptions{}, &bytes.Buffer{}) },
			"terminal": func() error {
				term, err := s.client.OpenTerminal(ctx, sb, client.TerminalOptions{Cmd: "id", User: user})
				if err == nil {
					_ = term.Close()
				}
				return err
			},
		}
		for name, do := range calls {
			if err := do(); !errors.Is(err, hutch.ErrForbidden) {
				t.Errorf("%s as %s: %v, want it forbidden", name, user, err)
			}
		}
	}
	s.refusesRootOnE2B(t, sb)
	term := s.terminal(t, sb, client.TerminalOptions{})
	term.types("echo \"I am <$(id -u)>\"; grep NoNewPrivs /proc/self/status\n")
	term.sees("I am <1000>")
	term.sees("NoNewPrivs:\t1")
}

// refusesRootOnE2B asks for root through E2B's API, which elsewhere does as root what a user may
// not do.
func (s *server) refusesRootOnE2B(t *testing.T, sb hutch.SandboxID) {
	t.Helper()
	headers := func(user, typ string) []string {
		h := []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))}
		for k, v := range s.agentCall(t, sb, "", typ).Header {
			h = append(h, k, v)
		}
		return h
	}
	for _, c := range []struct {
		user, path, body string
		status           int
	}{
		{"user", "/files?username=user&path=/etc/hostname", "", http.StatusOK},
		{"user", "/files?username=user&path=/etc/shadow", "", http.StatusForbidden},
		{"user", "/files?username=root&path=/etc/hostname", "", http.StatusForbidden},
		{"user", "/filesystem.Filesystem/Stat", `{"path": "/etc/hostname"}`, http.StatusOK},
		{"root", "/filesystem.Filesystem/Stat", `{"path": "/etc/hostname"}`, http.StatusForbidden},
		{"user", "/filesystem.Filesystem/MakeDir", `{"path": "/workspace/e2b"}`, http.StatusOK},
		{"user", "/filesystem.Filesystem/MakeDir", `{"path": "/etc/e2b"}`, http.StatusForbidden},
		{"root", "/filesystem.Filesystem/MakeDir", `{"path": "/workspace/by-root"}`, http.StatusForbidden},
	} {
		method := http.MethodGet
		if c.body != "" {
			method = http.MethodPost
		}
		if a := s.ask(t, method, c.path, c.body, headers(c.user, "application/json")...); a.status != c.status {
			t.Errorf("E2B's %s %s as %s: %d %.200s, want %d", c.path, c.body, c.user, a.status, a.body, c.status)
		}
	}
	for user, want := range map[string]string{"user": base64.StdEncoding.EncodeToString([]byte("uid=1000\n")), "root": "permission_denied"} {
		message := `{"process": {"cmd": "/bin/sh", "args": ["-c", "echo uid=$(id -u)"]}}`
		framed := append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
		a := s.ask(t, http.MethodPost, "/process.Process/Start", string(framed), headers(user, "application/connect+json")...)
		if !strings.Contains(a.body, want) {
			t.Errorf("E2B's process as %s: %.500q, want %s", user, a.body, want)
		}
	}
}

// rootsProgram is a tar with a program that belongs to root and says that it runs as root.
func rootsProgram(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	script := "#!/bin/sh\nid -u\n"
	for _, h := range []*tar.Header{
		{Name: "brought", Typeflag: tar.TypeReg, Mode: 0o6755, Size: int64(len(script)), Uname: "root", Gname: "root"},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write([]byte(script)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

//go:embed testdata/doors.py
var doors string

// In a locked sandbox nothing that a program can try gives it more rights than it has.
func TestLockedSandboxHasNoDoors(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{Profile: hutch.ProfileLocked}).ID
	f := client.File{Sandbox: sb, Path: "/tmp/doors.py"}
	if _, err := s.client.WriteFile(t.Context(), f, strings.NewReader(doors), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if out := s.out(t, sb, "python3 /tmp/doors.py", timeout(300)); out != "tried worked 0" {
		t.Errorf("doors:\n%s", out)
	}
	t.Run("an ordinary user elsewhere has some", func(t *testing.T) {
		root := s.create(t, api.CreateSandbox{}).ID
		s.out(t, root, "unshare -Ur true && touch /usr/local/x && sudo -n true", asUser("user"))
		s.put(t, root, f.Path, []byte(doors))
		out := s.out(t, root, "python3 /tmp/doors.py", asUser("user"), timeout(300))
		if n := strings.Count(out, "worked: "); n < 10 {
			t.Errorf("%d doors only: what is shut above is shut anyway\n%s", n, out)
		} else {
			t.Logf("%d doors", n)
		}
	})
	t.Run("programs that carry root's rights", func(t *testing.T) {
		dir := client.File{Sandbox: sb, Path: "/tmp/tar"}
		if _, err := s.client.MakeDir(t.Context(), sb, api.MakeDirectory{Path: dir.Path}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.client.WriteArchive(t.Context(), dir, bytes.NewReader(rootsProgram(t)), false); err != nil {
			t.Errorf("a tar with a setuid program, unpacked as one's own: %v", err)
		}
		got := s.out(t, sb, `/tmp/tar/brought; stat -c %u /tmp/tar/brought
			cp /usr/bin/id /tmp/made && chmod 6755 /tmp/made && /tmp/made -u
			find / -xdev -perm -4000 -uid 0 2>/dev/null | wc -l`)
		lines := strings.Fields(got)
		if len(lines) != 4 || lines[0] != "1000" || lines[1] != "1000" || lines[2] != "1000" {
			t.Errorf("ids: %v", lines)
		} else if n, _ := strconv.Atoi(lines[3]); n == 0 {
			t.Error("the image has no setuid program: the next lines show nothing")
		}
		for _, cmd := range []string{"sudo -n id -u", "su -c 'id -u' </dev/null", "mount -t tmpfs none /tmp", "newgrp root </dev/null; [ $(id -g) = 0 ]", "setpriv --reuid 0 id", "unshare -Urm id", "chroot / id"} {
			if r := s.run(t, sb, cmd); r.ExitCode == 0 {
				t.Errorf("%s: %s", cmd, r.Stdout)
			}
		}
	})
	t.Run("nothing else can be written to", func(t *testing.T) {
		got := s.out(t, sb, `find / \( -path /proc -o -path /workspace -o -path /home/user -o -path /tmp -o -path /var/tmp -o -path /dev/shm \) -prune -o \( -type d -o -type f \) -writable -print 2>/dev/null; true`)
		if got != "" {
			t.Errorf("these can: %s", got)
		}
	})
	t.Run("the agent is unharmed", func(t *testing.T) {
		if got := s.out(t, sb, "tr '\\0' ' ' </proc/1/cmdline"); !strings.Contains(got, "hutch-guest") {
			t.Errorf("the first process is %q", got)
		}
	})
}

// What can be written to is bounded: the places on the disk together by its size, shared
// memory by its own.
func TestLockedSandboxIsCapped(t *testing.T) {
	s := common(t)
	const disk, memory = 32, 256
	for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
		t.Run(string(tier), func(t *testing.T) {
			sb := s.create(t, api.CreateSandbox{Profile: hutch.ProfileLocked, MemoryMB: ptr(memory), DiskMB: ptr(disk), DiskTier: tier}).ID
			shm := memory / 2
			if tier == hutch.TierMemory {
				shm = memory / 4
			}
			for _, place := range []string{"/workspace", "/home/user", "/tmp", "/var/tmp"} {
				s.filled(t, sb, place, disk)
			}
			s.filled(t, sb, "/dev/shm", shm)
			// One after the other they do not come to more.
			got := s.out(t, sb, `for d in /workspace /home/user /tmp /var/tmp; do dd if=/dev/zero of=$d/fill bs=1M count=12 2>/dev/null; done; cat /workspace/fill /home/user/fill /tmp/fill /var/tmp/fill | wc -c; rm /workspace/fill /home/user/fill /tmp/fill /var/tmp/fill`)
			if n, err := strconv.Atoi(got); err != nil || n > disk<<20 || n < 24<<20 {
				t.Errorf("four times 12 MiB came to %s bytes, with %d MiB of disk", got, disk)
			}
		})
	}
}

// filled fills a place, says that it was given no more than mb MiB, and empties it.
func (s *server) filled(t *testing.T, sb hutch.SandboxID, place string, mb int) {
	t.Helper()
	r := s.run(t, sb, fmt.Sprintf(`dd if=/dev/zero of=%[1]s/fill bs=1M count=%[2]d; stat -c %%s %[1]s/fill; rm %[1]s/fill`, place, 2*mb))
	n, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
	if err != nil || !strings.Contains(r.Stderr, "No space left") || n > mb<<20 || n < mb<<20*3/4 {
		t.Errorf("%s took %s of %d MiB: %s", place, strings.TrimSpace(r.Stdout), mb, r.Stderr)
	}
}

// An agent gets its work done in a locked sandbox.
func TestAnAgentWorksInALockedSandbox(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{Profile: hutch.ProfileLocked, MemoryMB: ptr(1024), Env: map[string]string{"GREETING": "hello"}}).ID
	for name, script := range map[string]string{
		"who and where":  `[ "$(whoami)" = user ] && [ "$PWD" = /home/user ] && [ "$HOME" = /home/user ] && [ "$GREETING" = hello ]`,
		"git":            `mkdir /workspace/repo && cd /workspace/repo && git init -q && git config user.email a@b && git config user.name a && echo x > f && git add . && git commit -qm first && git clone -q . ../copy && git -C ../copy log --oneline | grep first`,
		"python":         `cd /workspace && python3 -m venv --without-pip venv && venv/bin/python -c 'import sys; assert sys.prefix == "/workspace/venv"' && pip --version`,
		"npm":            `mkdir /workspace/js /workspace/lib && cd /workspace/lib && npm init -y >/dev/null && echo 'module.exports = 42' > index.js && cd ../js && npm init -y >/dev/null && npm install --offline --no-audit --no-fund ../lib >/dev/null && node -e 'process.exit(require("lib") === 42 ? 0 : 1)'`,
		"C":              `cd /workspace && printf '#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n' > a.c && gcc -O2 -o a a.c && ./a | grep -x compiled && cp a.c b.c && make -s b && ./b | grep -x compiled`,
		"temporary":      `f=$(mktemp) && echo x > $f && mv $f /workspace/moved && python3 -c 'import tempfile, multiprocessing; tempfile.TemporaryFile(); multiprocessing.Lock()'`,
		"server":         `cd /workspace && { python3 -m http.server 8000 >/dev/null 2>&1 & } && for i in $(seq 100); do curl -sf localhost:8000/ >/dev/null && break; sleep 0.1; done; curl -sf localhost:8000/ >/dev/null; code=$?; kill %1; exit $code`,
		"ssh and config": `mkdir -p ~/.ssh ~/.cache ~/.config && git config --global x.y z && [ "$(git config x.y)" = z ]`,
	} {
		t.Run(name, func(t *testing.T) {
			if r := s.run(t, sb, script, timeout(120)); r.ExitCode != 0 {
				t.Errorf("exit code %d\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
			}
		})
	}
}

// A sandbox that is locked because its project's are is taken over by the next server as it is.
func TestLockedSandboxStaysLockedThroughARestart(t *testing.T) {
	s := own(t, "--project-profile", "default=locked")
	sb := s.create(t, api.CreateSandbox{}).ID
	s.out(t, sb, "echo kept > /workspace/f")
	s.kill9(t)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if got := s.out(t, sb, "cat /workspace/f; id -u; touch /etc/x 2>/dev/null || echo read-only"); got != "kept\n1000\nread-only" {
		t.Errorf("after a restart: %q", got)
	}
	if _, err := s.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: "id", User: "root"}); !errors.Is(err, hutch.ErrForbidden) {
		t.Errorf("root after a restart: %v", err)
	}
	// It was the operator who wanted that project's sandboxes locked, unless they ask not to be.
	if root := s.create(t, api.CreateSandbox{Profile: hutch.ProfileRoot}).ID; s.out(t, root, "id -u") != "0" {
		t.Error("a sandbox that asks for root is not")
	}
}

// Images that know of no ordinary user, or of odd ones, are locked all the same.
func TestLockedSandboxesOfOtherImages(t *testing.T) {
	users := func(passwd string) []imagetest.Entry {
		return []imagetest.Entry{imagetest.File("etc/passwd", passwd), imagetest.File("etc/group", "root:x:0:user\n")}
	}
	images := map[string]struct {
		config v1.Config
		files  []imagetest.Entry
		want   string // of who
	}{
		"bare":       {v1.Config{WorkingDir: "/srv"}, nil, "1000 1000 1000 user /home/user /srv home"},
		"rootsgroup": {v1.Config{User: "4711"}, nil, "4711 65534 65534 4711 / / no-home"},
		"rootlike":   {v1.Config{User: "user"}, users("user:x:0:0::/root:/bin/sh\n"), "1000 1000 1000 user /home/user / home"},
		"nohome":     {v1.Config{WorkingDir: "/root"}, append(users("user:x:1000:1000::/usr/share:/bin/sh\n"), imagetest.Dir("usr/share", 0o777)), "1000 1000 1000 user /usr/share /usr/share no-home"},
		"links": {v1.Config{}, []imagetest.Entry{
			imagetest.Dir("open", 0o777), imagetest.Link("var/tmp", "/open"), imagetest.Link("home", "/away"), imagetest.Dir("away", 0o755),
		}, "1000 1000 1000 user /home/user / home"},
		"agents": {v1.Config{}, []imagetest.Entry{ // where the agent has its own directories there is something of the user's
			imagetest.Owned(imagetest.Dir("var/lib/hutch", 0o755), 1000, 1000), imagetest.Owned(imagetest.Dir("var/lib/hutch/exec", 0o777), 1000, 1000),
			imagetest.Dir("open", 0o777), imagetest.Link("run/hutch", "/open"),
		}, "1000 1000 1000 user /home/user / home"},
	}
	const who = `echo $(id -u) $(id -g) $(id -G) $USER $HOME $(pwd) $(touch $HOME/x 2>/dev/null && echo home || echo no-home)
for d in / /etc /usr /usr/share /open /srv /var/tmp/. /run /run/hutch/. /var/lib/hutch /var/lib/hutch/exec; do [ -d $d ] && touch $d/x 2>/dev/null && echo wrote $d; done
touch /workspace/x /tmp/x /dev/shm/x || echo cannot write`
	s := withTemplates(t, func(s *server, cache string) {
		for name, im := range images {
			im.config.Env = []string{"PATH=/bin"}
			image := imagetest.Image(t, im.config, imagetest.Layer(t, imagetest.Busybox(t, "sh", "id", "pwd", "touch", "echo")...), imagetest.Layer(t, im.files...))
			buildTemplate(t, s, cache, "--oci", imagetest.Layout(t, map[string]v1.Image{"": image}), "--name", name, "--memory", "256", "--profile", "locked")
		}
	})
	for name, im := range images {
		sb := s.create(t, api.CreateSandbox{Template: name, MemoryMB: ptr(256)})
		want := im.want
		if name != "links" {
			want += "\nwrote /var/tmp/."
		}
		if got := s.out(t, sb.ID, who); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}
