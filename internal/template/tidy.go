package template

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// emptied are directories whose files go and whose directories stay: programs expect
// to find those.
var emptied = []string{"var/log", "var/cache/apt", "var/lib/apt/lists", "tmp", "var/tmp", "run"}

// removed are patterns of what differs from build to build, must not be shared by
// sandboxes, or is of this machine.
var removed = []string{
	"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "etc/.pwd.lock",
	"var/lib/dpkg/*-old", "var/cache/debconf/*-old", "var/cache/ldconfig/aux-cache",
	"var/lib/dbus/machine-id", "var/lib/systemd/random-seed", "var/lib/urandom/random-seed",
	"etc/ssh/ssh_host_*",
	"root/.cache", "root/.npm", "root/.bash_history", "root/.wget-hsts",
	"etc/apt/sources.list", "etc/apt/sources.list.d/*", "etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
}

// tidy removes what must not be in an image, and writes what every image has.
func (run *building) tidy(root *os.Root) error {
	for _, dir := range emptied {
		if err := emptyDir(root, dir); err != nil {
			return fmt.Errorf("empty /%s: %w", dir, err)
		}
	}
	for _, pattern := range removed {
		names, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return fmt.Errorf("find /%s: %w", pattern, err)
		}
		for _, name := range names {
			if err := root.RemoveAll(name); err != nil {
				return fmt.Errorf("remove /%s: %w", name, err)
			}
		}
	}
	files := map[string]string{
		"etc/machine-id":  "", // one's own is made by whoever needs one
		"etc/resolv.conf": "", // no nameserver: a lookup fails at once until there is a network
		"etc/hostname":    "sandbox\n",
		// Not ::1 for localhost: clients that try only the first address would miss
		// servers that listen on 127.0.0.1.
		"etc/hosts": hostsFile,
		dpkgFile:    run.dpkgFile(),
	}
	if conf := run.mirrorSettings(); conf != "" {
		files["etc/apt/apt.conf.d/81mirror"] = conf
	}
	for name, text := range files {
		if err := replaceFile(root, name, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write /%s: %w", name, err)
		}
	}
	if err := run.writeSources(root); err != nil {
		return fmt.Errorf("write the image's package sources: %w", err)
	}
	return fixShadow(root, run.sourceDate)
}

// emptyDir removes the files below dir.
func emptyDir(root *os.Root, dir string) error {
	info, err := root.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil // a link to another directory, which is in the list itself
	}
	if err != nil {
		return err
	}
	return fs.WalkDir(root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return root.Remove(name)
	})
}

// writeSources leaves in the image where its packages came from, so that apt works in
// a sandbox that may reach it, with the keys that needs.
func (run *building) writeSources(root *os.Root) error {
	sel := run.plan.sources.ForImage()
	if len(sel.Sources) == 0 {
		return nil
	}
	for _, src := range sel.Sources {
		for _, key := range src.KeyFiles() {
			if _, err := root.Stat(inTree(key)); err == nil {
				continue // from a package
			}
			data, err := os.ReadFile(path.Join(run.cfg.Root, key))
			if err != nil {
				return fmt.Errorf("read signing key: %w", err)
			}
			if err := root.MkdirAll(path.Dir(inTree(key)), 0o755); err != nil {
				return err
			}
			if err := replaceFile(root, inTree(key), data, 0o644); err != nil {
				return err
			}
		}
	}
	return replaceFile(root, "etc/apt/sources.list.d/hutch.sources", []byte(sel.Deb822()), 0o644)
}

// mirrorSettings returns those settings of the machine's apt that are about the mirror
// and not about the way to it: a mirror that is frozen in time stays so inside.
func (run *building) mirrorSettings() string {
	data, err := os.ReadFile(path.Join(run.dir, "apt.conf"))
	if err != nil {
		return ""
	}
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "Acquire::Check-Valid-Until ") || strings.HasPrefix(line, "Acquire::Check-Date ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// fixShadow gives every account the same day of its last change of password, the one
// of the packages: useradd writes today.
func fixShadow(root *os.Root, day time.Time) error {
	data, err := root.ReadFile("etc/shadow")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read /etc/shadow: %w", err)
	}
	days := strconv.FormatInt(day.Unix()/(24*60*60), 10)
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] != "" {
			f[2] = days
			lines[i] = strings.Join(f, ":")
		}
	}
	info, err := root.Stat("etc/shadow")
	if err != nil {
		return fmt.Errorf("read /etc/shadow: %w", err)
	}
	// Written in place, to keep owner and mode.
	if err := root.WriteFile("etc/shadow", []byte(strings.Join(lines, "\n")), info.Mode().Perm()); err != nil {
		return fmt.Errorf("write /etc/shadow: %w", err)
	}
	return nil
}
