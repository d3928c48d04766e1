package template_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/template"
)

// fakeMmdebstrap stands in for mmdebstrap: it counts its calls, makes a tree with a
// shell from this machine's files, and then does what the test put into $DO.
const fakeMmdebstrap = `#!/bin/sh
set -e
FAKE=%s
echo "$*" >>"$FAKE/calls"
for last; do tree=$before sources=$last before=$last; done
mkdir -p "$tree"/bin "$tree"/proc "$tree"/tmp "$tree"/run "$tree"/dev "$tree"/usr/share "$tree"/root/.cache
mkdir -p "$tree"/etc/apt/sources.list.d "$tree"/etc/apt/apt.conf.d "$tree"/etc/dpkg/dpkg.cfg.d
mkdir -p "$tree"/var/lib/apt/lists/partial "$tree"/var/log/apt "$tree"/var/cache/apt
chmod 755 "$tree"
for program in /bin/sh /bin/sleep /bin/cat /bin/chmod; do
	cp "$program" "$tree/bin/"
	for lib in $(ldd "$program" | grep -o '/[^ ]*'); do
		mkdir -p "$tree/$(dirname "$lib")"
		cp -n "$lib" "$tree/$lib" || true
	done
done
mknod -m 666 "$tree/dev/null" c 1 3
printf 'Origin: Debian\nCodename: bookworm\nDate: Sat, 11 Jul 2026 10:16:37 UTC\nSHA256:\n' >"$tree/var/lib/apt/lists/m_InRelease"
cp "$sources" "$FAKE/sources"
cp "$sources" "$tree/etc/apt/sources.list.d/0000build.sources"
for opt; do case $opt in --aptopt=*) cp "${opt#--aptopt=}" "$FAKE/apt.conf"; cp "$FAKE/apt.conf" "$tree/etc/apt/apt.conf.d/99mmdebstrap";; esac; done
printf 'root:*:19000:0:99999:7:::\nuser:!:20000:0:99999:7:::\n' >"$tree/etc/shadow"
chmod 640 "$tree/etc/shadow"
hostname >"$tree/etc/hostname"
echo 'nameserver 192.0.2.1' >"$tree/etc/resolv.conf"
echo log >"$tree/var/log/apt/history.log"
echo cached >"$tree/root/.cache/x"
date >"$tree/etc/passwd-"
. "$FAKE/do"
echo 'I: success in 1.0 seconds'
`

// bench is a builder with a fake mmdebstrap and a made-up machine.
type bench struct {
	dir  string // of the builder and the image store
	fake string // of the fake: calls, do, and whatever the test's script writes
	root string // of the machine
	*template.Builder
	images   *rootfs.Store
	log      *bytes.Buffer
	maxBytes int64  // of a container image; 0 = the default
	recipes  string // directory of further recipes
}

// newBench makes one; do is a shell script that runs when the fake has made the tree,
// with $tree, $FAKE and the arguments.
func newBench(t *testing.T, do string) *bench {
	t.Helper()
	for _, need := range []string{"mkfs.erofs", "fsck.erofs", "unshare"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("%s is not installed", need)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("building needs root")
	}
	top := t.TempDir()
	b := &bench{dir: filepath.Join(top, "store"), fake: filepath.Join(top, "fake"), root: filepath.Join(top, "machine")}
	write(t, filepath.Join(b.fake, "bin/mmdebstrap"), fmt.Sprintf(fakeMmdebstrap, b.fake), 0o755)
	write(t, filepath.Join(b.fake, "bin/apt-config"), "#!/bin/sh\necho 'Acquire::http::Proxy \"http://builder:hunter2@proxy.example:3142\";'\necho 'Acquire::Check-Valid-Until \"false\";'\necho 'Acquire::Languages \"de\";'\n", 0o755)
	write(t, filepath.Join(b.fake, "do"), do, 0o644)
	write(t, filepath.Join(b.root, "etc/os-release"), "ID=debian\nVERSION_CODENAME=bookworm\n", 0o644)
	write(t, filepath.Join(b.root, "etc/apt/sources.list"), "deb [signed-by=/etc/apt/keyrings/m.gpg] http://robot:letmein@mirror.example/debian bookworm main\n", 0o644)
	write(t, filepath.Join(b.root, "etc/apt/keyrings/m.gpg"), "a key", 0o644)
	t.Setenv("PATH", filepath.Join(b.fake, "bin")+":"+os.Getenv("PATH"))
	b.open()
	return b
}

// open makes the builder, as another process would.
func (b *bench) open() {
	b.log = &bytes.Buffer{}
	b.images = rootfs.New(rootfs.Config{Dir: b.dir})
	b.Builder = template.New(template.Config{Dir: b.dir, Root: b.root, MaxImageBytes: b.maxBytes, Recipes: b.recipes}, b.images, slog.New(slog.NewTextHandler(b.log, nil)))
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// calls returns the arguments of each run of the fake.
func (b *bench) calls(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.fake, "calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// left lists what is in the builder's directory but directories and the store's lock.
func (b *bench) left(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(b.dir, func(path string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if rel, _ := filepath.Rel(b.dir, path); err == nil && rel != "images.lock" && (!d.IsDir() || filepath.Dir(rel) == "work") {
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// extract unpacks an image and returns where.
func extract(t *testing.T, image string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "x")
	if out, err := exec.CommandContext(t.Context(), "fsck.erofs", "--extract="+dir, image).CombinedOutput(); err != nil {
		t.Fatalf("fsck.erofs: %v\n%s", err, out)
	}
	return dir
}

// eventually polls until ok holds, for at most ten seconds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain until %s", what)
		case <-tick.C:
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// running reports whether a process has marker among its arguments.
func running(marker string) bool {
	cmdlines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range cmdlines {
		if data, err := os.ReadFile(name); err == nil && bytes.Contains(data, []byte(marker)) {
			return true
		}
	}
	return false
}

// recipe parses a recipe; name is added.
func recipe(t *testing.T, yaml string) template.Recipe {
	t.Helper()
	r, err := template.ParseRecipe([]byte("name: demo\n" + yaml))
	if err != nil {
		t.Fatal(err)
	}
	return r
}
