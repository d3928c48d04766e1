package template_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/template"
)

// enterBase runs a script in a base image as the account "user": its argument 1 is
// the image, 2 an empty directory. There is a writable layer in memory, a name of its
// own, and no network.
const enterBase = `set -e
mount -t tmpfs scratch "$2"
mkdir "$2/lower" "$2/upper" "$2/work" "$2/root"
mount -t erofs -o ro,loop "$1" "$2/lower" || exit 99
mount -t overlay -o "lowerdir=$2/lower,upperdir=$2/upper,workdir=$2/work" overlay "$2/root"
mount -t proc proc "$2/root/proc"
hostname i0123456789abcdefghij
cat >"$2/root/script"
exec chroot "$2/root" runuser -u user -- env -i HOME=/home/user LANG=C.UTF-8 PATH="$PATH" bash -e /script
`

// builtin builds a template that comes with Hutch in the shared cache, or finds it built.
func builtin(t *testing.T, name string) template.Result {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a large image unless it is there")
	}
	if os.Getuid() != 0 {
		t.Skip("building needs root")
	}
	r, err := template.Builtin(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := rootfs.CacheDir()
	images := rootfs.New(rootfs.Config{Dir: dir})
	// Where the command line keeps its builds, so that what it built is found.
	b := template.New(template.Config{Dir: filepath.Join(dir, "builds")}, images, slog.New(slog.NewTextHandler(t.Output(), nil)))
	res, err := b.Build(t.Context(), r, template.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("image %s, %d MB, built in %s, cached %v", res.Image.Digest, res.Image.SizeBytes>>20, res.Took, res.Cached)
	return res
}

// use is a script to run in an image, and what it must print.
type use struct{ name, script, want string }

// TestBase builds the base template and uses what is in it.
func TestBase(t *testing.T) {
	res := builtin(t, "base")
	if got := res.Template().Aliases; !slices.Contains(got, "ubuntu-24.04") || !slices.Contains(got, "debian") {
		t.Errorf("aliases %q", got)
	}
	// In order: the first one looks before the others leave anything.
	inside(t, res, []use{
		{"no trace of the build", "cat /etc/machine-id /etc/resolv.conf; sudo find /var/log /var/cache/apt /var/lib/apt/lists /tmp /run -type f", ""},
		{"account", "id -un; id -u; sudo -n id -un", "user\n1000\nroot"},
		{"sudo keeps the recipe's variables", "DEBIAN_FRONTEND=noninteractive sudo -n printenv DEBIAN_FRONTEND LANG", "noninteractive\nC.UTF-8"},
		{"workspace", "stat -c '%a %U' /workspace; touch /workspace/x", "777 root"},
		{"python", "python3 -m venv /tmp/v && /tmp/v/bin/python -c 'import sys, pip; print(sys.prefix)'", "/tmp/v"},
		{"python's compiled files are valid", "cd /usr/lib/python3.*/ && python3 -v -c 'import json' 2>&1 | grep -c 'json/__pycache__/__init__.*matches'", "1"},
		{"pip may install into the system", "pip config list | grep break-system-packages", "global.break-system-packages='true'"},
		{"pip gives up soon", "timeout 15 pip download nosuch 2>&1 | tail -n 1 | cut -c1-6", "ERROR:"},
		{"npm", "npm --version >/dev/null; npm config get fetch-retries; npm config get update-notifier", "1\nfalse"},
		{"npm gives up soon", "timeout 15 npm view nosuch >/dev/null 2>&1 || echo $?", "1"},
		{"npm installs for all", "mkdir /tmp/p; cd /tmp/p; printf '#!/usr/bin/env node\\nconsole.log(\"ran\")' >x.js; echo '{\"name\":\"xx\",\"version\":\"1.0.0\",\"bin\":\"x.js\"}' >package.json; npm pack --silent >/dev/null; npm install --silent --offline -g ./xx-1.0.0.tgz >/dev/null; xx", "ran"},
		{"C", "cd /tmp; echo 'int main(){return 7;}' >a.c; gcc a.c -o a; ./a || echo $?", "7"},
		{"C++", "cd /tmp; printf '#include <string>\\nint main(){return std::string(\"four\").size();}' >b.cc; g++ b.cc -o b; ./b || echo $?", "4"},
		{"git takes any directory", "sudo git init -q /srv/r; git -C /srv/r status --short; git config init.defaultBranch", "main"},
		{"tools", "curl --version >/dev/null; rg --version >/dev/null; jq -n 1; ps -o comm= $$", "1\nbash"},
		{"own name resolves", "getent hosts $(hostname) | grep -c .", "1"},
		{"localhost is 127.0.0.1", "getent ahosts localhost | head -n 1 | cut -d' ' -f1", "127.0.0.1"},
		{"unknown names fail at once", "timeout 5 getent hosts nosuch.example || echo $?", "2"},
		{"apt knows where its packages are", "ls /etc/apt/sources.list.d; apt-get --print-uris update | grep -q InRelease", "hutch.sources"},
		{"python without a number", "python -c 'import sys; print(sys.version_info.major)'", "3"},
		{"sockets and processes are seen", "ss -ltn | head -n 1 | cut -c1-5; pgrep -c bash >/dev/null; ip -o link show lo | cut -d: -f2", "State\n lo"},
		{"git serves", "git init -q /tmp/g && cd /tmp/g && git -c user.name=n -c user.email=e commit -q --allow-empty -m m && (git daemon --export-all --base-path=/tmp --reuseaddr --listen=127.0.0.1 --port=9418 >/dev/null 2>&1 & sudo ip link set lo up; for i in $(seq 100); do git clone -q git://127.0.0.1/g /tmp/h 2>/dev/null && break; sleep 0.3; done; git -C /tmp/h log --format=%s; kill $!)", "m"},
		{"manuals stay out, licences in", "find /usr/share/man/ -type f; test -s /usr/share/doc/bash/copyright", ""},
	})
}

// TestCodeInterpreter builds the template of the code interpreter and uses what is in it.
func TestCodeInterpreter(t *testing.T) {
	res := builtin(t, "code-interpreter")
	if got := res.Template(); !reflect.DeepEqual(got.Aliases, []string{"code-interpreter-v1"}) || got.Defaults.Env["MPLCONFIGDIR"] != "/var/cache/matplotlib" {
		t.Errorf("record %+v", got)
	}
	plot := `cd /tmp; cat >p.py <<'PY'
import matplotlib.pyplot as plt, pandas as pd
pd.DataFrame({"a": [1, 2]}).plot(title="Title")
plt.savefig("p.png")
PY
MPLCONFIGDIR=/var/cache/matplotlib %s python3 -W error -v p.py 2>log; head -c 8 p.png | tail -c 7 | head -c 3; grep -c "fontlist\|building the font cache" log || true; %s rm -f p.png`
	inside(t, res, []use{
		{"no trace of the build", "sudo find /var/log /var/cache/apt /var/lib/apt/lists /tmp /run -type f; sudo ls -A /root/.cache 2>/dev/null || true; cat /etc/resolv.conf", ""},
		{"sudo is still setuid", "stat -c %a /usr/bin/sudo", "4755"},
		{"plots as a user", fmt.Sprintf(plot, "", ""), "PNG0"},
		{"plots as root", fmt.Sprintf(plot, "sudo -E", "sudo"), "PNG0"},
		{"compiled code is valid", "cd /tmp; python3 -v -c 'import numpy' 2>&1 | grep -c 'numpy/__pycache__/__init__.*matches'", "1"},
		{"a kernel starts", "cd /tmp; sudo ip link set lo up; python3 -c 'from jupyter_client.manager import start_new_kernel as s; m, c = s(kernel_name=\"python3\"); print(c.execute_interactive(\"6*7\", timeout=60)[\"content\"][\"status\"]); m.shutdown_kernel(now=True)' 2>/dev/null | tail -n 1", "42ok"},
		{"pip goes on from it", "pip list --format freeze | grep -c '^numpy==2'; touch $(python3 -c 'import numpy; print(numpy.__path__[0])')/x", "1"},
		{"fonts", "fc-list | grep -c 'Liberation Sans:style=Regular'", "1"},
	})
}

// inside runs scripts in an image, one after the other, as the account "user".
func inside(t *testing.T, res template.Result, tests []use) {
	t.Helper()
	// One entry for all: a shell each, its output up to a line with its status.
	const mark = "--- status "
	var script strings.Builder
	for _, tt := range tests {
		fmt.Fprintf(&script, "bash -e <<'EOF' 2>&1 && s=0 || s=$?; echo; echo \"%s$s\"\n%s\nEOF\n", mark, tt.script)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "sh", "-c", enterBase, "sh", res.Image.Path, t.TempDir())
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin = strings.NewReader(script.String())
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 99 {
		t.Skipf("this machine cannot mount EROFS: %s", out)
	}
	if err != nil {
		t.Fatalf("use the image: %v\n%s", err, out)
	}
	rest := string(out)
	for _, tt := range tests {
		output, after, _ := strings.Cut(rest, mark)
		status, after, _ := strings.Cut(after, "\n")
		rest = after
		if got := strings.TrimSpace(output); status != "0" || got != tt.want {
			t.Errorf("%s: status %q, output\n%s\nwant\n%s", tt.name, status, got, tt.want)
		}
	}
}
