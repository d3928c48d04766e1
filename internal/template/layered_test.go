package template_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/template"
	"hutch.dev/hutch/internal/template/erofs"
)

// low is what other recipes build upon here. Its python writes down what it is called
// with and does as pip would.
const low = `
name: low
aliases: [lowest]
packages: [python3-pip, sudo]
exclude: [/usr/share/man/*/*]
env: {LANG: C.UTF-8, LEVEL: low}
files:
  - {path: /opt/low, content: low, mode: "4755"}
  - path: /bin/python3
    mode: "0755"
    content: |
      #!/bin/sh
      echo "$*" >>/calls
      case "$*" in *compileall*) exit 0;; esac
      echo "$PIP_INDEX_URL $PIP_CERT" >>/calls
      cat "$PIP_CERT" >>/calls
      echo 'library' >/lib.py
      echo '{"install": [{"metadata": {"name": "numpy", "version": "2.0"}, "download_info": {"archive_info": {"hashes": {"sha256": "abcd"}}}}]}' >/run/build/out/report.json
user: root
cwd: /opt
resources: {cpu: 3, memory_mb: 300}
`

const upper = `
name: upper
description: more than low
aliases: [high]
from: low
packages: [fonts]
pip: [numpy>=2]
env: {LEVEL: upper}
files: [{path: /opt/upper, content: upper}]
commands: [{name: look, run: 'echo "$(cat /opt/low) $(cat /lib.py)" >/opt/seen'}]
resources: {memory_mb: 700}
`

// fakeApt is apt-get as the build calls it.
const fakeApt = `#!/bin/sh
cat "$APT_CONFIG" >"FAKE/apt-tree.conf"
echo "$*" >>"FAKE/apt"
tree=$(sed -n 's/^DPkg::Chroot-Directory "\(.*\)";/\1/p' "$APT_CONFIG")
test -e "$tree/proc/self/stat" || exit 9
case $* in
*update*) mkdir -p "$tree/var/lib/apt/lists"; printf 'Origin: Debian\nCodename: bookworm\nDate: Sun, 12 Jul 2026 10:16:37 UTC\nSHA256:\n' >"$tree/var/lib/apt/lists/n_InRelease";;
*install*) echo font >"$tree/usr/share/font";;
esac
`

// newLayeredBench is a bench with the recipes above.
func newLayeredBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, "mkdir -p \"$tree/opt\"; touch \"$tree/etc/resolv.conf\"")
	b.recipes = t.TempDir()
	write(t, filepath.Join(b.recipes, "low.yaml"), low, 0o644)
	write(t, filepath.Join(b.recipes, "upper.yaml"), upper, 0o644)
	write(t, filepath.Join(b.fake, "bin/apt-get"), strings.ReplaceAll(fakeApt, "FAKE", b.fake), 0o755)
	for _, name := range []string{"PIP_CERT", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "PIP_CONFIG_FILE"} {
		unset(t, name)
	}
	write(t, filepath.Join(b.root, "etc/pip.conf"), "[global]\nindex-url = https://builder:hunter2@index.example/simple\ncert = "+filepath.Join(b.root, "ca.pem")+"\n", 0o644)
	write(t, filepath.Join(b.root, "ca.pem"), "a certificate\n", 0o644)
	b.open()
	return b
}

// unset removes a variable for the test's time.
func unset(t *testing.T, name string) {
	t.Helper()
	t.Setenv(name, "")
	if err := os.Unsetenv(name); err != nil {
		t.Fatal(err)
	}
}

// unpack is extract by our own reader, which keeps setuid bits.
func unpack(t *testing.T, image rootfs.Image) string {
	t.Helper()
	f, err := os.Open(image.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := filepath.Join(t.TempDir(), "x")
	if err := erofs.Extract(t.Context(), f, image.SizeBytes, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (b *bench) recipe(t *testing.T, name string) template.Recipe {
	t.Helper()
	r, err := b.Recipe(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestARecipeUponAnother(t *testing.T) {
	b := newLayeredBench(t)
	var lines []string
	res, err := b.Build(t.Context(), b.recipe(t, "upper"), template.Options{Log: func(s template.Step, l string) { lines = append(lines, string(s)+": "+l) }})
	if err != nil {
		t.Fatal(err)
	}
	want := hutch.Template{
		Name: "upper", Description: "more than low", Aliases: []string{"high"},
		BuildID: res.BuildID, Image: res.Image.Digest, SizeBytes: res.Image.SizeBytes, Recipe: res.Key, CreatedAt: res.BuiltAt,
		Defaults:  hutch.ProcessDefaults{User: "root", Cwd: "/opt", Env: map[string]string{"LANG": "C.UTF-8", "LEVEL": "upper"}},
		Resources: hutch.Resources{MilliCPU: 3000, MemoryMB: 700, DiskMB: 10240, DiskTier: hutch.TierDisk},
	}
	if got := res.Template(); !reflect.DeepEqual(got, want) {
		t.Errorf("record %+v\nwant   %+v", got, want)
	}
	x := extract(t, res.Image.Path)
	calls := read(t, filepath.Join(x, "calls"))
	for _, want := range []string{
		"-m pip install", "--only-binary :all:", "-- numpy>=2\n", "https://builder:hunter2@index.example/simple /run/build/pip0", "a certificate\n", "-m compileall",
	} {
		if !strings.Contains(calls, want) {
			t.Errorf("python's calls lack %q:\n%s", want, calls)
		}
	}
	for name, want := range map[string]string{
		"opt/low": "low", "opt/upper": "upper", "opt/seen": "low library\n", "usr/share/font": "font\n",
		"etc/environment": "LANG=\"C.UTF-8\"\nLEVEL=\"upper\"\n", "etc/dpkg/dpkg.cfg.d/hutch": "force-unsafe-io\npath-exclude=/usr/share/man/*/*\n",
		"etc/resolv.conf": "", "etc/apt/apt.conf.d/81mirror": "Acquire::Check-Valid-Until \"false\";\n",
	} {
		if got := read(t, filepath.Join(x, name)); got != want {
			t.Errorf("/%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"run/build", "var/lib/apt/lists/n_InRelease", "var/lib/apt/lists/m_InRelease"} {
		if exists(filepath.Join(x, name)) {
			t.Errorf("/%s is in the image", name)
		}
	}
	if st, err := os.Stat(filepath.Join(x, "lib.py")); err != nil || st.ModTime().After(res.SourceDate) || !st.ModTime().Equal(res.SourceDate) {
		t.Errorf("what pip wrote: %v, %v; want the date %v", st, err, res.SourceDate)
	}
	if res.SourceDate.Day() != 12 {
		t.Errorf("the image's date is %v, want that of the newest index", res.SourceDate)
	}
	if !strings.Contains(strings.Join(lines, "\n"), "python: python package numpy 2.0 sha256:abcd") {
		t.Errorf("the log does not say what pip installed:\n%s", strings.Join(lines, "\n"))
	}
	conf := read(t, filepath.Join(b.fake, "apt-tree.conf"))
	if !strings.Contains(conf, `Acquire::http::Proxy "http://builder:hunter2@proxy.example:3142";`) {
		t.Errorf("apt's settings lack the machine's:\n%s", conf)
	}
	data, err := os.ReadFile(res.Image.Path)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte(calls), nil, 1) // that is the fake's own record
	for _, secret := range []string{"hunter2", "index.example", "a certificate", "proxy.example"} {
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%q is in the image", secret)
		}
	}
}

func TestTheLowerRecipeIsBuiltOnce(t *testing.T) {
	b := newLayeredBench(t)
	below, err := b.Build(t.Context(), b.recipe(t, "low"), template.Options{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := b.Build(t.Context(), b.recipe(t, "upper"), template.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.calls(t)); n != 1 {
		t.Errorf("mmdebstrap ran %d times, want once", n)
	}
	again, err := b.Build(t.Context(), b.recipe(t, "upper"), template.Options{})
	if err != nil || !again.Cached {
		t.Errorf("again: %+v, %v", again, err)
	}
	forced, err := b.Build(t.Context(), b.recipe(t, "upper"), template.Options{Force: true})
	if err != nil || forced.Cached || forced.Image.Digest != first.Image.Digest {
		t.Errorf("forced: %+v, %v; want the same image, built again", forced, err)
	}
	// setuid and all: a tree that went through an image is the one it was.
	for name, image := range map[string]rootfs.Image{"lower": below.Image, "upper": first.Image} {
		st, err := os.Stat(filepath.Join(unpack(t, image), "opt/low"))
		if err != nil || st.Size() != 3 || st.Mode() != os.ModeSetuid|0o755 {
			t.Errorf("in the %s image: %+v, %v; want 3 bytes, mode 4755", name, st, err)
		}
	}
	// Whatever changes below changes what is above.
	write(t, filepath.Join(b.recipes, "low.yaml"), strings.Replace(low, "content: low", "content: other", 1), 0o644)
	if _, err := b.Lookup(b.recipe(t, "upper")); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("with another recipe below: %v, want not found", err)
	}
	write(t, filepath.Join(b.recipes, "low.yaml"), low, 0o644)
	if _, err := b.Lookup(b.recipe(t, "upper")); err != nil {
		t.Errorf("with the old one again: %v", err)
	}
	// So does the index that Python packages come from, but not the password for it.
	write(t, filepath.Join(b.root, "etc/pip.conf"), "[global]\nindex-url = https://builder:other@index.example/simple\n", 0o644)
	if _, err := b.Lookup(b.recipe(t, "upper")); err != nil {
		t.Errorf("with another password: %v", err)
	}
	write(t, filepath.Join(b.root, "etc/pip.conf"), "[global]\nindex-url = https://elsewhere.example/simple\n", 0o644)
	if _, err := b.Lookup(b.recipe(t, "upper")); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("with another index: %v, want not found", err)
	}
}

func TestFailedLayers(t *testing.T) {
	tests := map[string]struct {
		low, upper string // replaced in the recipes: "old=>new"
		step       template.Step
		want       string
		left       bool // the recipe below was built
	}{
		"no such recipe":          {upper: "from: low=>from: nosuch", step: template.StepPlan, want: "nosuch"},
		"a circle":                {low: "name: low=>name: low\nfrom: upper", step: template.StepPlan, want: "build upon each other: upper, low, upper"},
		"another name":            {low: "name: low=>name: high", step: template.StepPlan, want: "calls itself high"},
		"a wrong recipe below":    {low: "LANG: C.UTF-8=>2: x", step: template.StepPlan, want: "env"},
		"a user of neither":       {upper: "from: low=>from: low\nuser: builder", step: template.StepPlan, want: "builder"},
		"a recipe below fails":    {low: "user: root=>commands: [{name: break, run: exit 3}]\nuser: root", step: template.StepBase, want: "build template low: customise (break)"},
		"a command of this one":   {upper: "run: 'echo=>run: 'exit 4; echo", step: template.StepCustomise, want: "exit status 4", left: true},
		"pip":                     {low: "case \"$*\" in *compileall*) exit 0;; esac=>echo no such wheel; exit 1", step: template.StepPython, want: "no such wheel", left: true},
		"pip's report is missing": {low: "/run/build/out/report.json=>/dev/null", step: template.StepPython, want: "report", left: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newLayeredBench(t)
			for file, text := range map[string]string{"low.yaml": low, "upper.yaml": upper} {
				change := tt.low
				if file == "upper.yaml" {
					change = tt.upper
				}
				if old, new, ok := strings.Cut(change, "=>"); ok {
					if !strings.Contains(text, old) {
						t.Fatalf("%s has no %q", file, old)
					}
					text = strings.Replace(text, old, new, 1)
				}
				write(t, filepath.Join(b.recipes, file), text, 0o644)
			}
			r, err := b.Recipe("upper")
			if err == nil {
				_, err = b.Build(t.Context(), r, template.Options{})
			}
			var at *template.StepError
			if !errors.As(err, &at) || at.Step != tt.step || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want step %s with %q", err, tt.step, tt.want)
			}
			left := strings.Join(b.left(t), " ")
			if tt.left != strings.Contains(left, "images/") || strings.Contains(left, "work/") {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func TestOperatorsRecipesComeFirst(t *testing.T) {
	b := newLayeredBench(t)
	write(t, filepath.Join(b.recipes, "base.yaml"), "name: base\ndescription: ours\n", 0o644)
	if r, err := b.Recipe("base"); err != nil || r.Description != "ours" {
		t.Errorf("base: %+v, %v", r, err)
	}
	if r, err := b.Recipe("code-interpreter"); err != nil || r.From != "base" {
		t.Errorf("one that comes with hutch: %+v, %v", r, err)
	}
	for _, name := range []string{"nosuch", "../low", "", "low/../low"} {
		if _, err := b.Recipe(name); !errors.Is(err, hutch.ErrNotFound) {
			t.Errorf("%q: %v, want not found", name, err)
		}
	}
}
