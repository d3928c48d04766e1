package cli_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// world is a command line before a fake service.
type world struct {
	*httpapitest.Fake
	t     testing.TB
	env   cli.Env
	vars  map[string]string
	files map[string]string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	f := httpapitest.New()
	w := &world{
		Fake: f, t: t, files: map[string]string{},
		vars: map[string]string{cli.EnvURL: f.Server(t, httpapi.Config{}).URL, cli.EnvKey: httpapitest.AdminKey},
	}
	w.env = cli.Env{
		Stdin: untouchable{t}, Now: time.Now, Build: api.BuildInfo{Semver: "1.2.3"},
		Getenv: func(k string) string { return w.vars[k] },
		ReadFile: func(name string) ([]byte, error) {
			if s, ok := w.files[name]; ok {
				return []byte(s), nil
			}
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		},
	}
	return w
}

// untouchable is a stdin that must not be read.
type untouchable struct{ t testing.TB }

func (u untouchable) Read([]byte) (int, error) {
	u.t.Error("stdin was read without -i")
	return 0, io.EOF
}

// result is what a command line did.
type result struct {
	out, err string
	code     int
}

func (w *world) run(args ...string) result {
	w.t.Helper()
	var out, errs bytes.Buffer
	env := w.env
	env.Stdout, env.Stderr = &out, &errs
	root := newRoot(env)
	root.SetArgs(args)
	err := root.ExecuteContext(w.t.Context())
	code := exitCode(err)
	return result{out.String(), errs.String(), code}
}

// ok runs a command that must succeed and returns what it printed, without the line's end.
func (w *world) ok(args ...string) string {
	w.t.Helper()
	r := w.run(args...)
	if r.code != 0 {
		w.t.Fatalf("%v: code %d, %s", args, r.code, r.err)
	}
	return strings.TrimSuffix(r.out, "\n")
}

// What differs from run to run.
var volatile = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\bi[a-z0-9]{20}\b`), "iSANDBOX-------------"},
	{regexp.MustCompile(`\be[a-z0-9]{20}\b`), "eEXEC----------------"},
	{regexp.MustCompile(`"request_id": ?"[0-9a-f]{16}"`), `"request_id":"ID"`},
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	for _, v := range volatile {
		got = v.re.ReplaceAllString(got, v.with)
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func TestGolden(t *testing.T) {
	w := newWorld(t)
	w.Now = func() time.Time { return httpapitest.Epoch.Add(time.Hour) }
	w.env.Now = func() time.Time { return w.Now().Add(90 * time.Second) }
	sb := w.ok("create", "-m", "task=fix\nit", "--cpu", "1.5", "--memory", "2G", "--hostname", "box", "--ttl", "1h")
	w.ok("exec", sb, "echo", "hi")
	bg := w.ok("exec", "-d", sb, "-c", "sleep 1000 # "+strings.Repeat("long ", 20))
	w.ok("extend", sb, "1h")
	first := strings.Split(w.ok("ls", sb, "--json"), `"exec_id": "`)
	echo := first[2][:21] // the older of the two

	for _, c := range []struct {
		name string
		args []string
	}{
		{"ls", []string{"ls"}},
		{"ls-json", []string{"ls", "--json"}},
		{"ls-quiet", []string{"ls", "-q"}},
		{"ls-execs-quiet", []string{"ls", sb, "--quiet"}},
		{"ls-none", []string{"ls", "--template", "other"}},
		{"ls-none-json", []string{"ls", "--template", "other", "--json"}},
		{"ls-execs", []string{"ls", sb}},
		{"get", []string{"get", sb}},
		{"get-json", []string{"get", sb, "--json"}},
		{"get-exec", []string{"get", echo}},
		{"get-exec-running", []string{"get", bg}},
		{"get-exec-json", []string{"get", echo, "--json"}},
		{"follow", []string{"follow", echo}},
		{"follow-json", []string{"follow", echo, "--json"}},
		{"extend", []string{"extend", sb, "1h"}},
		{"template", []string{"template", "ls"}},
		{"key-ls", []string{"key", "ls"}},
		{"version", []string{"version"}},
		{"help-exec", []string{"exec", "--help"}},
		{"help-usage", []string{"help"}},
		{"exec-json", []string{"exec", "--json", sb, "echo", "hi"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.t = t
			r := w.run(c.args...)
			if r.code != 0 || r.err != "" {
				t.Fatalf("code %d, stderr %s", r.code, r.err)
			}
			golden(t, c.name, r.out)
			if strings.HasSuffix(c.name, "-json") && !json.Valid([]byte(r.out)) {
				t.Error("not JSON")
			}
		})
	}
	golden(t, "cancel", w.ok("cancel", bg))
	golden(t, "cancel-again", w.ok("cancel", bg, "--json"))
	golden(t, "rm", w.ok("rm", sb))
	golden(t, "follow-sandbox", w.ok("follow", sb))
	r := w.run("get", sb)
	golden(t, "gone", r.err)
	r = w.run("get", sb, "--json")
	golden(t, "gone-json", r.err)
	if r.code != 1 {
		t.Errorf("code %d for a sandbox that has ended, want 1", r.code)
	}
}

func TestColoursOnlyOnATerminal(t *testing.T) {
	w := newWorld(t)
	w.ok("create")
	if out := w.ok("ls"); strings.Contains(out, "\x1b") {
		t.Errorf("colours without a terminal: %q", out)
	}
	w.env.Terminal = true
	out := w.ok("ls")
	if !strings.Contains(out, "\x1b[32mrunning\x1b[0m") {
		t.Errorf("no colours on a terminal: %q", out)
	}
	stripped := regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(out, "")
	w.env.Terminal = false
	golden := volatile[0].re.ReplaceAllString
	if plain := w.ok("ls"); golden(stripped, "") != golden(plain, "") {
		t.Errorf("columns move with colours:\n%s\n%s", stripped, plain)
	}
	w.env.Terminal = true
	if out := w.ok("ls", "--json"); strings.Contains(out, "\x1b") {
		t.Error("colours in JSON")
	}
}

func TestFindingTheServer(t *testing.T) {
	w := newWorld(t)
	url := w.vars[cli.EnvURL]
	local := map[string]string{
		"/var/lib/hutch/listen": strings.TrimPrefix(url, "http://") + "\n", "/var/lib/hutch/admin.key": httpapitest.AdminKey + "\n",
		"/elsewhere/listen": url, "/elsewhere/admin.key": httpapitest.ReadKey,
	}
	for _, c := range []struct {
		name  string
		vars  map[string]string
		files map[string]string
		args  []string
		code  int
		says  string
	}{
		{"environment", map[string]string{cli.EnvURL: url, cli.EnvKey: httpapitest.RunKey}, nil, nil, 0, ""},
		{"the usual directory", nil, local, nil, 0, ""},
		{"a directory from the environment", map[string]string{cli.EnvDataDir: "/elsewhere"}, local, nil, 0, ""},
		{"a directory from the flag", map[string]string{cli.EnvDataDir: "/nowhere"}, local, []string{"--data-dir", "/elsewhere"}, 0, ""},
		{"local address, own key", map[string]string{cli.EnvKey: httpapitest.RunKey}, map[string]string{"/var/lib/hutch/listen": url}, nil, 0, ""},
		{"the local key stays here", map[string]string{cli.EnvURL: url}, local, nil, 1, cli.EnvKey},
		{"nothing", nil, nil, nil, 1, "hutch serve"},
		{"half a directory", nil, map[string]string{"/var/lib/hutch/listen": url}, nil, 1, "admin.key"},
		{"a broken file", nil, map[string]string{"/var/lib/hutch/listen": "nonsense", "/var/lib/hutch/admin.key": "k"}, nil, 1, "not an address"},
		{"a wrong key", map[string]string{cli.EnvURL: url, cli.EnvKey: "nope"}, nil, nil, 1, "not valid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.t, w.vars, w.files = t, c.vars, c.files
			w.env.Getenv = func(k string) string { return c.vars[k] }
			w.env.ReadFile = func(name string) ([]byte, error) {
				if s, ok := c.files[name]; ok {
					return []byte(s), nil
				}
				return nil, fs.ErrNotExist
			}
			r := w.run(append([]string{"ls"}, c.args...)...)
			if r.code != c.code || !strings.Contains(r.err, c.says) {
				t.Errorf("code %d, %q; want %d and %q", r.code, r.err, c.code, c.says)
			}
		})
	}
}

func TestCreateFlagsArrive(t *testing.T) {
	w := newWorld(t)
	w.vars["TOKEN"] = "from here"
	var got map[string]any
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&got)
		rw.WriteHeader(201)
		fmt.Fprint(rw, `{"id": "i1"}`)
	}))
	defer srv.Close()
	w.vars[cli.EnvURL] = srv.URL
	w.ok("create", "-t", "tpl", "--cpu", "0.5", "--memory", "1G", "--disk", "2048", "--disk-tier", "memory", "--pids", "64", "--profile", "locked",
		"--max-cpu", "2m", "--max-cost", "0.5", "-e", "A=b=c", "-e", "TOKEN", "-m", "k=v", "--hostname", "h", "--ttl", "1d", "--idle-timeout", "90", "--lease", "1m",
		"--setup", "make deps", "--setup-timeout", "5m", "--private-ports", "--mask-host", "localhost:${PORT}")
	want := map[string]any{
		"template": "tpl", "cpu": 0.5, "memory_mb": 1024.0, "disk_mb": 2048.0, "disk_tier": "memory", "pids": 64.0, "profile": "locked", "hostname": "h",
		"env": map[string]any{"A": "b=c", "TOKEN": "from here"}, "metadata": map[string]any{"k": "v"},
		"ttl_seconds": 86400.0, "idle_timeout_seconds": 90.0, "lease_seconds": 60.0, "budget": map[string]any{"cpu_seconds": 120.0, "cost": 0.5},
		"setup": "make deps", "setup_timeout_seconds": 300.0, "private_ports": true, "mask_host": "localhost:${PORT}",
	}
	if a, b := fmt.Sprint(got), fmt.Sprint(want); a != b {
		t.Errorf("sent %s, want %s", a, b)
	}
	got = nil
	w.ok("create")
	if fmt.Sprint(got) != "map[template:base]" {
		t.Errorf("without flags %v is sent", got)
	}
	for _, bad := range [][]string{
		{"--memory", "0.3"}, {"--memory", "x"}, {"--ttl", "soon"}, {"--ttl", "-5"}, {"-e", "=x"}, {"-m", "novalue"}, {"--nope"}, {"extra"}, {"--keep-alive"}, {"--keep-alive", "--lease", "0"}, {"--keep-alive", "--lease", "1m", "--setup", "true"},
	} {
		if r := w.run(append([]string{"create"}, bad...)...); r.code != 2 || !strings.Contains(r.err, "usage: hutch create") {
			t.Errorf("create %v: code %d, %q", bad, r.code, r.err)
		}
	}
}

func TestExecPrintsBytesAndExitsWithTheCommandsCode(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	w.Program("both", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "out\xff\n")
		_, _ = io.WriteString(p.Stderr, "err\n")
		return 42
	})
	for _, args := range [][]string{{"exec", sb, "both"}, {"exec", sb, "--", "both"}, {"exec", sb, "-c", "both"}, {"exec", "-c", "both", sb}} {
		if r := w.run(args...); r != (result{"out\xff\n", "err\n", 42}) {
			t.Errorf("%v: %+v", args, r)
		}
	}
	r := w.run("exec", "--json", sb, "both")
	var res api.ExecResult
	if err := json.Unmarshal([]byte(r.out), &res); err != nil || r.code != 42 || r.err != "" {
		t.Fatalf("--json: %+v, %v", r, err)
	}
	if res.ExitCode != 42 || !res.Lossy || string(res.StdoutBase64) != "out\xff\n" || res.Stderr != "err\n" {
		t.Errorf("--json: %+v", res)
	}
}

func TestExecGivesAllOutput(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	long := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB, over the default budget
	w.Program("long", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, long)
		return 0
	})
	if r := w.run("exec", sb, "long"); r.out != long || r.err != "" {
		t.Errorf("%d bytes, stderr %q", len(r.out), r.err)
	}
	r := w.run("exec", "--budget", "--max-output", "400", sb, "long")
	if len(r.out) != 400 || !strings.Contains(r.err, "2096752 bytes of stdout not shown") {
		t.Errorf("with the budget: %d bytes, %q", len(r.out), r.err)
	}
}

func TestExecFlagsAfterTheSandboxAreTheProgramsOwn(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	if out := w.ok("exec", sb, "echo", "--json", "-i", "x"); out != "--json -i x" {
		t.Errorf("echoed %q", out)
	}
}

func TestExecStdin(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	w.ok("exec", sb, "cat")                     // stdin is untouchable
	long := strings.Repeat("0123456789", 1<<18) // many times what one call carries
	w.env.Stdin = strings.NewReader(long)
	if out := w.ok("exec", "-i", sb, "cat"); out != long {
		t.Errorf("%d bytes came back, want %d", len(out), len(long))
	}
	w.env.Stdin = strings.NewReader("unread")
	if r := w.run("exec", "-i", sb, "exit7"); r.code != 7 || r.err != "" {
		t.Errorf("a command that ignores stdin: %+v", r)
	}
}

func TestExecFailures(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"exec"}, 2, "name a sandbox"},
		{[]string{"exec", sb}, 2, "name a command"},
		{[]string{"exec", "-c", "x", sb, "y"}, 2, "not both"},
		{[]string{"exec", "-i", "-d", sb, "cat"}, 2, "--detach"},
		{[]string{"exec", "--timeout", "0", sb, "true"}, 125, "timeout_seconds"},
		{[]string{"exec", "inope", "true"}, 125, "no sandbox"},
		{[]string{"follow", "enope"}, 125, "no command"},
		{[]string{"exec", sb, "nosuch"}, 127, "nosuch: not found"},
		{[]string{"cancel", "enope"}, 1, "enope: there is no command"},
		{[]string{"rm"}, 2, "requires at least 1 arg"},
		{[]string{"extend", sb, "later"}, 2, "duration"},
	} {
		if r := w.run(c.args...); r.code != c.code || !strings.Contains(r.err, c.says) {
			t.Errorf("%v: code %d, %q; want %d and %q", c.args, r.code, r.err, c.code, c.says)
		}
	}
}

func TestExecSaysHowACommandWasEnded(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	begun := make(chan struct{})
	w.Program("wait", func(p *httpapitest.Process) int {
		close(begun)
		<-p.Stopped
		return 137
	})
	go func() {
		<-begun
		_, _ = w.End(hutch.DefaultProject, hutch.SandboxID(sb), hutch.EndOOM)
	}()
	if r := w.run("exec", sb, "wait"); r.code != 137 || !strings.Contains(r.err, "sandbox gone") {
		t.Errorf("%+v", r)
	}
}

func TestSeveralAtOnceGoOnAfterAFailure(t *testing.T) {
	w := newWorld(t)
	a, b := w.ok("create"), w.ok("create")
	r := w.run("pause", a, "inope", b)
	if r.code != 1 || r.out != a+"\n"+b+"\n" || !strings.Contains(r.err, "inope") {
		t.Errorf("%+v", r)
	}
	w.ok("resume", a, b)
	r = w.run("rm", "--json", a, "inope", b)
	var done []string
	if err := json.Unmarshal([]byte(r.out), &done); err != nil || len(done) != 2 || r.code != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// full is a stdout that nothing can be written to.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestAFullStdoutIsAFailure(t *testing.T) {
	w := newWorld(t)
	id := w.ok("create")
	for _, args := range [][]string{
		{"create"},
		{"create", "--json"},
		{"ls"},
		{"ls", "--json"},
		{"ls", id},
		{"get", id},
		{"get", "--json", id},
		{"exec", "-d", id, "echo"},
		{"template", "ls"},
		{"key", "ls"},
		{"key", "create", "ci"},
		{"version"},
		{"rm", id},
	} {
		var errs bytes.Buffer
		env := w.env
		env.Stdout, env.Stderr = full{}, &errs
		root := newRoot(env)
		root.SetArgs(args)
		if code := exitCode(root.ExecuteContext(t.Context())); code != 1 || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%v: code %d, %q; want 1 and why", args, code, errs.String())
		}
		if m := regexp.MustCompile("`hutch rm (i[a-z0-9]+)`").FindStringSubmatch(errs.String()); args[0] == "create" {
			if m == nil {
				t.Errorf("%v: %q does not say what runs now", args, errs.String())
			} else {
				w.ok("get", m[1])
			}
		}
	}
}

func TestFailuresWithoutAServerHaveNoCode(t *testing.T) {
	w := newWorld(t)
	clear(w.vars)
	r := w.run("ls", "--json")
	var body map[string]any
	if err := json.Unmarshal([]byte(r.err), &body); err != nil || r.code != 1 || body["error"] == "" {
		t.Fatalf("code %d, %q, %v", r.code, r.err, err)
	}
	if code, has := body["code"]; has {
		t.Errorf("code is %q, want none", code)
	}
}

func TestWrongCallsExitWith2(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{
		{"foo"},
		{"--foo"},
		{"serve", "extra"},
		{"serve", "--foo"},
		{"key", "foo"},
		{"template", "foo"},
		{"get"},
		{"ls", "a", "b"},
		{"ls", "--all", "--state", "dead"},
		{"create", "--foo"},
	} {
		r := w.run(args...)
		if r.code != 2 || strings.Count(r.err, "hutch: ") != 1 || !strings.Contains(r.err, "usage: hutch") || r.out != "" {
			t.Errorf("%v: code %d, stdout %q, stderr %q", args, r.code, r.out, r.err)
		}
	}
	if r := w.run("creat"); !strings.Contains(r.err, "did you mean create?") {
		t.Errorf("no suggestion: %q", r.err)
	}
	for _, args := range [][]string{{}, {"help"}, {"key"}, {"key", "--help"}, {"serve"}} {
		if r := w.run(args...); r.code != 0 || r.err != "" {
			t.Errorf("%v: code %d, %q", args, r.code, r.err)
		}
	}
}

// What a call would not heed is refused, not passed over.
func TestFlagsWithoutEffectAreRefused(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	file, dir := filepath.Join(t.TempDir(), "f"), t.TempDir()
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.Inside.Put("/tmp/a", []byte("bytes"))
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{2, "--running is about", []string{"ls", "-q", "--running"}},
		{2, "--all is about", []string{"ls", sb, "--all"}},
		{2, "--state is about", []string{"ls", sb, "--state", "dead"}},
		{2, "--template is about", []string{"ls", sb, "-t", "x"}},
		{2, "--metadata is about", []string{"ls", sb, "-m", "a=b"}},
		{2, "--limit -5", []string{"ls", "-n", "-5"}},
		{2, "--limit 0", []string{"ls", sb, "-n", "0"}},
		{2, "--tail -5", []string{"logs", sb, "-n", "-5"}},
		{2, "--tail -5", []string{"events", "-n", "-5"}},
		{2, "--budget is about", []string{"exec", "-d", "--budget", sb, "true"}},
		{2, "--quiet is about", []string{"exec", "-t", sb, "-q", "true"}},
		{125, "max_output_bytes", []string{"exec", "--max-output", "0", sb, "true"}},
		{2, "--stdout-offset is about", []string{"follow", sb, "--stdout-offset", "1"}},
		{2, "--stderr-offset is about", []string{"follow", sb, "--stderr-offset", "1"}},
		{2, "--budget is about", []string{"follow", sb, "--budget"}},
		{2, "--quiet is about", []string{"follow", sb, "-q"}},
		{1, "--exclude is for a directory", []string{"cp", file, sb + ":/tmp/", "--exclude", "x"}},
		{1, "0789", []string{"cp", sb + ":/tmp/a", filepath.Join(dir, "a"), "--mode", "0789"}},
		{1, "setuid", []string{"cp", sb + ":/tmp/a", filepath.Join(dir, "a"), "--mode", "4755"}},
		{1, "not for stdout", []string{"cp", sb + ":/tmp/a", "-", "--mode", "0755"}},
	} {
		if r := w.run(c.args...); r.code != c.code || !strings.Contains(r.err, c.says) || r.out != "" {
			t.Errorf("%v: %+v, want code %d and %q", c.args, r, c.code, c.says)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v was written, %v", left, err)
	}
	w.ok("cp", sb+":/tmp/a", filepath.Join(dir, "a"), "--mode", "0750")
	if st, err := os.Stat(filepath.Join(dir, "a")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("copied with mode %v, %v", st.Mode(), err)
	}
}

// What a sandbox says of its end moves no cursor.
func TestRemarksAreCleaned(t *testing.T) {
	w := newWorld(t)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		rw.Header().Set(api.HeaderExecID, "e1")
		fmt.Fprint(rw, "event: exit\ndata: {\"exec_id\": \"e1\", \"exit_code\": 3, \"end_reason\": \"signal\", \"signal\": \"A\\u001b[2J\", \"detail\": \"B\\u001b[2J\", \"limits_hit\": [\"C\\u001b[2J\"]}\n\n")
	}))
	defer srv.Close()
	w.vars[cli.EnvURL] = srv.URL
	if r := w.run("exec", "i1", "x"); r.code != 3 || strings.Contains(r.err, "\x1b") || !strings.Contains(r.err, "B\uFFFD[2J") || !strings.Contains(r.err, "C\uFFFD[2J") {
		t.Errorf("%+v", r)
	}
}

// With -n 0 only what happens from now on is printed.
func TestEventsFromNowOn(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	w.ok("pause", sb)
	w.ok("resume", sb)
	if out := w.ok("events", sb, "-n", "0"); out != "" {
		t.Errorf("without following: %q", out)
	}
	following, calls := make(chan struct{}), 0
	w.OnCall = func(method string) error {
		if method == "Sandbox" { // once for what has been, once to follow
			if calls++; calls == 2 {
				close(following)
			}
		}
		return nil
	}
	go func() {
		<-following
		_, _ = w.End(hutch.DefaultProject, hutch.SandboxID(sb), hutch.EndKilled)
	}()
	out := w.ok("events", sb, "-n", "0", "-f")
	if strings.Count(out, "\n") != 0 || !strings.Contains(out, "sandbox.ended") {
		t.Errorf("it printed %q, want the end only", out)
	}
}

// A server that does not answer does not keep `version` waiting.
func TestVersionAsksOnce(t *testing.T) {
	w := newWorld(t)
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		asked++
		rw.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	w.vars[cli.EnvURL] = srv.URL
	if out := w.ok("version"); out != "hutch  1.2.3" || asked != 1 {
		t.Errorf("asked %d times: %q", asked, out)
	}
}

func TestKeys(t *testing.T) {
	w := newWorld(t)
	key := w.ok("key", "create", "ci", "--scope", "read", "--expires", "30d")
	admin := w.vars[cli.EnvKey]
	w.vars[cli.EnvKey] = key
	w.ok("ls")
	if r := w.run("create"); r.code != 1 || !strings.Contains(r.err, "scope run") {
		t.Errorf("a reader made a sandbox: %+v", r)
	}
	w.vars[cli.EnvKey] = admin
	if out := w.ok("key", "ls"); !strings.Contains(out, key[:8]) || strings.Contains(out, key) {
		t.Errorf("listed %s", out)
	}
	w.ok("key", "rm", key[:8])
	w.vars[cli.EnvKey] = key
	if r := w.run("ls"); r.code != 1 {
		t.Errorf("a revoked key works: %+v", r)
	}
}

func TestVersionWithoutAServer(t *testing.T) {
	w := newWorld(t)
	w.vars = nil
	w.env.Getenv = func(string) string { return "" }
	if out := w.ok("version"); out != "hutch  1.2.3" {
		t.Errorf("version %q", out)
	}
	var v struct{ Client, Server *api.BuildInfo }
	if err := json.Unmarshal([]byte(w.ok("version", "--json")), &v); err != nil || v.Client.Semver != "1.2.3" || v.Server != nil {
		t.Errorf("version %+v, %v", v, err)
	}
}

func TestCompletion(t *testing.T) {
	w := newWorld(t)
	sb := w.ok("create")
	for _, verb := range []string{"get", "rm", "pause", "exec", "ls", "extend"} {
		out := w.ok("__complete", verb, "")
		if !strings.Contains(out, sb+"\tbase, running") {
			t.Errorf("%s offers %q", verb, out)
		}
	}
	if out := w.ok("__complete", "get", sb, ""); strings.Contains(out, sb+"\t") {
		t.Errorf("get offers a second sandbox: %q", out)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out := w.ok("completion", shell); !strings.Contains(out, "hutch") {
			t.Errorf("no completion for %s", shell)
		}
	}
}

// syncBuffer may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Copying to a pipe or a device writes into it; it is not replaced by a file.
func TestCopyIntoAPipe(t *testing.T) {
	w := newWorld(t)
	w.Inside.Put("/tmp/a", []byte("bytes"))
	id := strings.TrimSpace(w.run("create").out)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	// Open for both, so that neither end waits for the other.
	f, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if r := w.run("cp", id+":/tmp/a", pipe); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if st, err := os.Stat(pipe); err != nil || st.Mode()&fs.ModeNamedPipe == 0 {
		t.Fatalf("the pipe has become %v, %v", st.Mode(), err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(f, got); err != nil || string(got) != "bytes" {
		t.Errorf("%q came through it, %v", got, err)
	}
}
