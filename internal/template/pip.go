package template

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pipVersion is raised whenever the same requirements would make another image than
// before, from the same index.
const pipVersion = "1"

// pipSource is how this machine's pip reaches packages.
type pipSource struct {
	env      []string // for pip inside of a tree
	binds    []bind   // what env names of this machine
	identity string   // of where packages come from, without passwords
}

// pipKeys are the settings of pip that say how to reach packages, and whether they name
// files of the machine. The others are the image's own business.
var pipKeys = map[string]bool{
	"index-url": false, "extra-index-url": false, "no-index": false, "trusted-host": false, "proxy": false,
	"timeout": false, "default-timeout": false, "retries": false,
	"find-links": true, "cert": true, "client-cert": true,
}

// pipOrigin are those of them that say where packages come from.
var pipOrigin = []string{"index-url", "extra-index-url", "no-index", "find-links"}

// certVariables name certificates to every program that fetches, pip among them.
var certVariables = []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}

// insideDir is where a build finds what is bound into its tree: below a directory that
// is covered meanwhile, so that nothing of it stays.
const insideDir = "/run/build"

// readPip reads the machine's configuration of pip: its files below root, then the
// environment, as pip itself does.
func readPip(root string) (pipSource, error) {
	set := map[string]string{}
	for _, name := range pipFiles(root) {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return pipSource{}, fmt.Errorf("read the machine's pip configuration: %w", err)
		}
		maps.Copy(set, parsePip(string(data)))
	}
	for key := range pipKeys {
		if v, ok := os.LookupEnv("PIP_" + variable(key)); ok {
			set[key] = v
		}
	}
	return newPipSource(root, set), nil
}

// variable is the form of a key in the environment.
func variable(key string) string { return strings.ToUpper(strings.ReplaceAll(key, "-", "_")) }

// pipFiles are the files pip reads, the weakest first.
func pipFiles(root string) []string {
	at := func(p string) string { return filepath.Join(root, p) }
	home := cmp.Or(os.Getenv("HOME"), "/root")
	config := cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config"))
	files := []string{at("/etc/xdg/pip/pip.conf"), at("/etc/pip.conf"), at(filepath.Join(home, ".pip/pip.conf")), at(filepath.Join(config, "pip/pip.conf"))}
	switch own := os.Getenv("PIP_CONFIG_FILE"); own {
	case "":
	case os.DevNull:
		return nil // pip's way to say: no files
	default:
		files = append(files, own)
	}
	return files
}

// parsePip reads the keys we know from the sections that concern an installation. It is
// an INI file: what is indented goes on from the line before.
func parsePip(text string) map[string]string {
	set := map[string]string{}
	section, key := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n\t ")
		body := strings.TrimSpace(line)
		switch {
		case body == "" || body[0] == '#' || body[0] == ';':
		case line[0] == ' ' || line[0] == '\t':
			if key != "" {
				set[key] = strings.TrimSpace(set[key] + " " + body)
			}
		case body[0] == '[':
			section, key = strings.Trim(body, "[]"), ""
		default:
			name, value, _ := strings.Cut(body, "=")
			if i := strings.IndexByte(body, ':'); i >= 0 && (i < len(name)) {
				name, value = body[:i], body[i+1:]
			}
			key = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(name), "_", "-"))
			if _, known := pipKeys[key]; !known || section != "global" && section != "install" {
				key = ""
				continue
			}
			set[key] = strings.TrimSpace(value)
		}
	}
	return set
}

// newPipSource makes settings work inside of a tree: files that they name are bound.
func newPipSource(root string, set map[string]string) pipSource {
	var p pipSource
	inside := func(file string) string {
		if info, err := os.Stat(file); err != nil || !filepath.IsAbs(file) {
			return file // an address, or gone: pip says so
		} else if !info.IsDir() && !info.Mode().IsRegular() {
			return file
		}
		b := bind{host: file, name: fmt.Sprintf("pip%d", len(p.binds))}
		p.binds = append(p.binds, b)
		return filepath.Join(insideDir, b.name)
	}
	sum := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(set)) {
		value := set[key]
		if slices.Contains(pipOrigin, key) {
			fmt.Fprintf(sum, "%s=%s\n", key, withoutPasswords(value))
		}
		if pipKeys[key] {
			words := strings.Fields(value)
			for i, w := range words {
				words[i] = inside(strings.TrimPrefix(w, "file://"))
			}
			value = strings.Join(words, " ")
		}
		p.env = append(p.env, "PIP_"+variable(key)+"="+value)
	}
	for _, name := range certVariables {
		if file := os.Getenv(name); file != "" {
			p.env = append(p.env, name+"="+inside(file))
		}
	}
	netrc := cmp.Or(os.Getenv("NETRC"), filepath.Join(root, cmp.Or(os.Getenv("HOME"), "/root"), ".netrc"))
	if _, err := os.Stat(netrc); err == nil {
		p.env = append(p.env, "NETRC="+inside(netrc))
	}
	p.identity = hex.EncodeToString(sum.Sum(nil))
	return p
}

// withoutPasswords takes user names and passwords out of the addresses in a list.
func withoutPasswords(value string) string {
	words := strings.Fields(value)
	for i, w := range words {
		if u, err := url.Parse(w); err == nil && u.User != nil {
			u.User = nil
			words[i] = u.String()
		}
	}
	return strings.Join(words, " ")
}

// reportFile is where pip says what it installed.
const reportFile = "report.json"

// addPython installs the recipe's own Python packages and compiles them.
func (run *building) addPython(ctx context.Context) error {
	if len(run.plan.own.Pip) == 0 {
		return nil
	}
	run.begin(StepPython, "", nil)
	out := filepath.Join(run.dir, "pip")
	if err := os.Mkdir(out, 0o700); err != nil {
		return fmt.Errorf("make directory for pip's report: %w", err)
	}
	argv := []string{
		"python3", "-m", "pip", "install", "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off",
		"--root-user-action", "ignore", "--only-binary", ":all:", "--no-compile",
		"--report", filepath.Join(insideDir, "out", reportFile), "--",
	}
	install := job{
		argv: append(argv, run.plan.own.Pip...), tree: run.tree, out: run.tracker, env: run.plan.pip.env,
		binds: append(slices.Clone(run.plan.pip.binds), bind{host: out, name: "out", writable: true}),
	}
	if err := install.run(ctx); err != nil {
		return err
	}
	run.at(0.7)
	if err := run.notePython(filepath.Join(out, reportFile)); err != nil {
		return err
	}
	// Compiled code names the time of its source, and no file in the image is younger
	// than the image's date: sources get that date first.
	if err := clampTimes(run.tree, run.sourceDate); err != nil {
		return fmt.Errorf("set times of Python packages: %w", err)
	}
	run.at(0.75)
	compile := job{argv: []string{"/bin/sh", "-c", compileScript}, tree: run.tree, out: run.tracker, env: []string{"PYTHONHASHSEED=0"}}
	return compile.run(ctx)
}

// compileScript compiles what pip installed. One process does it in one order, so that the
// result is always the same. A file that is no Python of this version is left as it is.
const compileScript = `python3 -m compileall -q /usr/local/lib/python3*/dist-packages || echo "some files were not compiled"`

// pipReport is the part of pip's report that is read.
type pipReport struct {
	Install []struct {
		Metadata struct {
			Name, Version string
		}
		DownloadInfo struct {
			ArchiveInfo struct {
				Hashes map[string]string
			} `json:"archive_info"`
		} `json:"download_info"`
	}
}

// notePython writes into the log what was installed.
func (run *building) notePython(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read pip's report: %w", err)
	}
	var r pipReport
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("read pip's report: %w", err)
	}
	for _, p := range r.Install {
		run.note("python package %s %s sha256:%s", p.Metadata.Name, p.Metadata.Version, p.DownloadInfo.ArchiveInfo.Hashes["sha256"])
	}
	return nil
}

// clampTimes gives every file of a tree that is younger than date that date.
func clampTimes(tree string, date time.Time) error {
	ts, err := unix.TimeToTimespec(date)
	if err != nil {
		return err
	}
	return filepath.WalkDir(tree, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		if st.Mtim.Sec < ts.Sec {
			return nil
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	})
}
