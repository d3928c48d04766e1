package harness

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/rootfs"
)

// installTimeout bounds an installation: some tens of megabytes over a slow line.
const installTimeout = 10 * time.Minute

// installed marks a directory whose installation went through.
const installed = ".installed"

// kit is what scripts import: the reporting of checks.
//
//go:embed scripts
var kit embed.FS

// language is how packages of one language are installed and scripts in it are run.
type language struct {
	name    string
	pins    []string                                                // files that say what is installed
	install func(ctx context.Context, dir string) []*exec.Cmd       // into dir, which holds the pins
	run     func(ctx context.Context, dir, script string) *exec.Cmd // dir as install left it
}

// Packages are installed client packages.
type Packages struct {
	lang    language
	dir     string // where they are installed
	scripts string // the suite's scripts
}

// Node installs what package.json and package-lock.json in dir name, dir being where the
// suite's scripts are.
func Node(dir string) (*Packages, error) {
	return install(dir, language{
		name: "node",
		pins: []string{"package.json", "package-lock.json"},
		install: func(ctx context.Context, dir string) []*exec.Cmd {
			c := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
			c.Dir = dir
			return []*exec.Cmd{c}
		},
		run: func(ctx context.Context, _, script string) *exec.Cmd {
			return exec.CommandContext(ctx, "node", script)
		},
	})
}

// Python installs what requirements.txt in dir names into an environment of its own, dir
// being where the suite's scripts are.
func Python(dir string) (*Packages, error) {
	return install(dir, language{
		name: "python",
		pins: []string{"requirements.txt"},
		install: func(ctx context.Context, dir string) []*exec.Cmd {
			venv := filepath.Join(dir, "venv")
			return []*exec.Cmd{
				exec.CommandContext(ctx, "python3", "-m", "venv", venv),
				exec.CommandContext(ctx, filepath.Join(venv, "bin", "python"), "-m", "pip", "install", "--quiet",
					"--disable-pip-version-check", "--no-deps", "-r", filepath.Join(dir, "requirements.txt")),
				exec.CommandContext(ctx, filepath.Join(venv, "bin", "python"), "-m", "pip", "check", "--disable-pip-version-check"),
			}
		},
		run: func(ctx context.Context, dir, script string) *exec.Cmd {
			return exec.CommandContext(ctx, filepath.Join(dir, "venv", "bin", "python"), "-B", "-u", script)
		},
	})
}

// install makes sure that the packages are there. The directory's name is made from the
// pins, so a change of them is another directory.
func install(scripts string, lang language) (*Packages, error) {
	sum := sha256.New()
	pins := make(map[string][]byte, len(lang.pins))
	for _, name := range lang.pins {
		b, err := os.ReadFile(filepath.Join(scripts, name))
		if err != nil {
			return nil, fmt.Errorf("read what to install: %w", err)
		}
		pins[name] = b
		fmt.Fprintf(sum, "%s %d\n", name, len(b))
		sum.Write(b)
	}
	root := filepath.Join(rootfs.CacheDir(), "conformance")
	dir := filepath.Join(root, lang.name+"-"+hex.EncodeToString(sum.Sum(nil))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }() // lets go of the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("wait for another installation: %w", err)
	}
	p := &Packages{lang: lang, dir: dir, scripts: scripts}
	if _, err := os.Stat(filepath.Join(dir, installed)); err == nil {
		return p, nil
	}
	for name, b := range pins {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	for _, cmd := range lang.install(ctx, dir) {
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("install the %s packages: %v: %w\n%s", lang.name, cmd.Args, err, bytes.TrimSpace(out))
		}
	}
	return p, os.WriteFile(filepath.Join(dir, installed), nil, 0o644)
}

// prepare copies the scripts and the kit to where their packages are found, and returns the
// copy's directory and how to remove it.
func (p *Packages) prepare() (string, func() error, error) {
	dir, err := os.MkdirTemp(p.dir, "run")
	if err != nil {
		return "", nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	if err := os.CopyFS(filepath.Join(dir, "scripts"), os.DirFS(p.scripts)); err != nil {
		return "", nil, errors.Join(fmt.Errorf("copy the scripts: %w", err), remove())
	}
	if err := os.CopyFS(dir, kit); err != nil {
		return "", nil, errors.Join(fmt.Errorf("copy the kit: %w", err), remove())
	}
	return filepath.Join(dir, "scripts"), remove, nil
}
