package presets

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"hutch.dev/hutch/internal/x/aptsource"
)

// How often clients inside try again. A name that is denied stays denied, and their defaults
// keep a caller waiting for up to a minute; one more attempt, after a second at the most, is
// what a real network needs.
const retries = "1"

// apt takes the hosts of the machine's sources. What of them a template's image gets is the
// template's business.
func (f *finder) apt() {
	sources, err := aptsource.Read(filepath.Join("/", f.m.Root))
	if err != nil {
		f.say("apt: some of its sources cannot be read")
	}
	for _, s := range sources {
		for _, uri := range s.URIs {
			if strings.HasPrefix(uri, "tor+") {
				f.say("apt fetches through Tor, which sandboxes do not")
				continue
			}
			f.add(Debian, "apt", strings.Replace(uri, "mirror://", "http://", 1))
		}
	}
	if f.hosts[Debian] == nil {
		f.say("apt has no source on the network: there is no preset %q", Debian)
		return
	}
	f.inside.Files = append(f.inside.Files, File{"/etc/apt/apt.conf.d/82attempts", fmt.Sprintf(
		"// What the egress policy denies stays denied.\nAcquire::Retries \"%s\";\nAcquire::Retries::Delay::Maximum \"1\";\n", retries)})
}

// pipDefaults asks pip's own module for the index it has unless told otherwise, and for the
// host that this one keeps its files at.
const pipDefaults = "from pip._internal.models.index import PyPI as p; print(p.simple_url, p.file_storage_domain)"

// pip reads pip's files, the weakest first, and its variables.
func (f *finder) pip(ctx context.Context) {
	files := []string{"/etc/xdg/pip/pip.conf", "/etc/pip.conf", f.home(".pip/pip.conf"), f.config("pip/pip.conf")}
	switch own := f.m.Getenv("PIP_CONFIG_FILE"); own {
	case "":
	case os.DevNull:
		files = nil
	default:
		files = append(files, own)
	}
	set := make(map[string]string)
	for _, file := range files {
		for _, s := range settings(f.read(file)) {
			if slices.Contains([]string{"global", "install", "download"}, s.section) {
				set[strings.ReplaceAll(s.key, "_", "-")] = s.value
			}
		}
	}
	for _, key := range []string{"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert"} {
		if v := f.m.Getenv("PIP_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))); v != "" {
			set[key] = v
		}
	}
	f.ca(set["cert"])
	conf := "[global]\nretries = " + retries + "\n"
	index := f.add(PyPI, "pip", set["index-url"])
	if index != "" {
		conf += "index-url = " + index + "\n"
		f.inside.Env["UV_DEFAULT_INDEX"] = index
	} else if set["index-url"] == "" && !slices.Contains([]string{"1", "true", "yes", "on"}, strings.ToLower(set["no-index"])) {
		f.pipDefault(ctx)
	}
	for _, key := range []string{"extra-index-url", "find-links"} {
		var kept []string
		for _, v := range strings.Fields(set[key]) {
			if u := f.add(PyPI, "pip", v); u != "" {
				kept = append(kept, u)
			}
		}
		if len(kept) > 0 {
			conf += key + " = " + strings.Join(kept, "\n    ") + "\n"
		}
	}
	if f.hosts[PyPI] == nil {
		return
	}
	if v := strings.Fields(set["trusted-host"]); len(v) > 0 {
		conf += "trusted-host = " + strings.Join(v, "\n    ") + "\n"
	}
	f.inside.Files = append(f.inside.Files, File{"/etc/pip.conf", conf})
	f.inside.Env["UV_HTTP_RETRIES"] = retries
}

func (f *finder) pipDefault(ctx context.Context) {
	out, ok := f.ask(ctx, "python3", "-c", pipDefaults)
	words := strings.Fields(out)
	if !ok || len(words) != 2 || f.add(PyPI, "pip", words[0]) == "" || !f.host(PyPI, "pip", words[1], 443) {
		f.say("pip is not there, or does not say what index it has: set index-url in /etc/pip.conf for a preset %q", PyPI)
	}
}

// npm asks npm, or reads what it would.
func (f *finder) npm(ctx context.Context) {
	set := make(map[string]string)
	if out, ok := f.ask(ctx, "npm", "config", "list", "--json"); ok {
		var all map[string]any
		if json.Unmarshal([]byte(out), &all) != nil {
			f.say("npm says nothing that can be read about its settings")
		}
		for k, v := range all {
			if s, isText := v.(string); isText {
				set[k] = s
			}
		}
	} else {
		for _, file := range []string{"/usr/etc/npmrc", "/etc/npmrc", f.home(".npmrc")} {
			for _, s := range settings(f.read(file)) {
				set[s.key] = s.value
			}
		}
		if v := f.m.Getenv("NPM_CONFIG_REGISTRY") + f.m.Getenv("npm_config_registry"); v != "" {
			set["registry"] = v
		}
	}
	f.ca(set["cafile"])
	registry := f.add(NPM, "npm", set["registry"])
	if registry == "" {
		f.say("npm is not there, or names no registry: set registry in /etc/npmrc for a preset %q", NPM)
		return
	}
	scopes := ""
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if scope, ok := strings.CutSuffix(key, ":registry"); ok && strings.HasPrefix(scope, "@") {
			if u := f.add(NPM, "npm", set[key]); u != "" {
				scopes += key + "=" + u + "\n"
			}
		}
		if slices.ContainsFunc([]string{"_authToken", "_auth", "_password"}, func(s string) bool { return key == s || strings.HasSuffix(key, ":"+s) }) {
			f.say("npm has a login, which stays outside: fetching with it needs one that the gateway adds")
		}
	}
	if scopes != "" { // no variable of a shell can name them
		f.inside.Files = append(f.inside.Files, File{npmFile, scopes})
		f.inside.Env["NPM_CONFIG_GLOBALCONFIG"] = npmFile
	}
	for k, v := range map[string]string{
		"NPM_CONFIG_REGISTRY":               registry, // which its like read too
		"NPM_CONFIG_FETCH_RETRIES":          retries,
		"NPM_CONFIG_FETCH_RETRY_MINTIMEOUT": "1000", // ms
		"NPM_CONFIG_FETCH_RETRY_MAXTIMEOUT": "1000",
		"YARN_NPM_REGISTRY_SERVER":          strings.TrimSuffix(registry, "/"),
		"YARN_HTTP_RETRY":                   retries,
		"BUN_CONFIG_REGISTRY":               registry,
	} {
		f.inside.Env[k] = v
	}
}

// npmFile is named by a variable, since where npm looks for it depends on how it was
// installed.
const npmFile = "/etc/npmrc"

// goKeys are what Go says of where modules come from; what is set for them is needed inside.
var goKeys = []string{"GOPROXY", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOINSECURE"}

func (f *finder) golang(ctx context.Context) {
	set := make(map[string]string)
	if out, ok := f.ask(ctx, "go", append([]string{"env", "-json"}, goKeys...)...); ok {
		if json.Unmarshal([]byte(out), &set) != nil {
			f.say("go says nothing that can be read about its settings")
		}
	} else {
		for _, s := range settings(f.read(f.config("go/env"))) {
			set[s.key] = s.value
		}
		for _, key := range goKeys {
			if v := f.m.Getenv(key); v != "" {
				set[key] = v
			}
		}
	}
	proxies, direct := f.goProxies(set["GOPROXY"])
	if f.hosts[Golang] == nil {
		f.say("go is not there, or names no module proxy: set GOPROXY for a preset %q", Golang)
		return
	}
	if direct {
		f.say("go also fetches modules from where they live, which is not in the preset %q: that takes rules of its own", Golang)
	}
	f.inside.Env["GOPROXY"] = proxies
	for _, key := range goKeys[1:] {
		if set[key] != "" {
			f.inside.Env[key] = set[key]
		}
	}
	switch words := strings.Fields(set["GOSUMDB"]); {
	case len(words) > 1:
		if u := f.add(Golang, "go", words[1]); u != "" {
			f.inside.Env["GOSUMDB"] = words[0] + " " + u
		}
	case len(words) == 1 && words[0] != "off":
		name, _, _ := strings.Cut(words[0], "+")
		f.host(Golang, "go", name, 443)
	}
}

// goProxies is the list without logins, and whether it has modules fetched directly.
func (f *finder) goProxies(list string) (clean string, direct bool) {
	var b strings.Builder
	for list != "" {
		end := strings.IndexAny(list, ",|")
		entry, sep := list, ""
		if end >= 0 {
			entry, sep, list = list[:end], list[end:end+1], list[end+1:]
		} else {
			list = ""
		}
		switch entry = strings.TrimSpace(entry); entry {
		case "direct":
			direct = true
		case "off", "":
		default:
			entry = f.add(Golang, "go", entry)
		}
		if entry != "" {
			b.WriteString(entry + sep)
		}
	}
	return strings.TrimRight(b.String(), ",|"), direct
}

// indexName is the directory of an index that Cargo has used: its host, and a hash.
var indexName = regexp.MustCompile(`^(.+)-[0-9a-f]{16}$`)

// cargo reads Cargo's files, and what it has fetched: it has no way to say its default.
func (f *finder) cargo() {
	dir := f.m.Getenv("CARGO_HOME")
	if dir == "" {
		dir = f.home(".cargo")
	}
	mirror := ""
	for _, name := range []string{"config", "config.toml"} {
		sources, replaced := make(map[string]string), ""
		for _, s := range settings(f.read(filepath.Join("/", dir, name))) {
			source, isSource := strings.CutPrefix(s.section, "source.")
			switch {
			case isSource && source == "crates-io" && s.key == "replace-with":
				replaced = s.value
			case isSource && s.key == "registry":
				sources[source] = s.value
			case (strings.HasPrefix(s.section, "registries.") || s.section == "registry") && s.key == "index":
				f.add(Crates, "cargo", s.value)
			case s.section == "http" && s.key == "cainfo":
				f.ca(s.value)
			}
		}
		if replaced != "" {
			mirror = f.add(Crates, "cargo", sources[replaced])
		}
	}
	entries, _ := os.ReadDir(filepath.Join(f.m.Root, dir, "registry/index")) // none has been used
	for _, e := range entries {
		if m := indexName.FindStringSubmatch(e.Name()); m != nil && mirror == "" {
			f.host(Crates, "cargo", m[1], 443)
			f.cargoFiles(filepath.Join("/", dir, "registry/index", e.Name()))
		}
	}
	if f.hosts[Crates] == nil {
		f.say("cargo is not there, or has fetched nothing yet: set a source in %s for a preset %q", filepath.Join(dir, "config.toml"), Crates)
		return
	}
	f.inside.Env["CARGO_NET_RETRY"] = retries
	if mirror != "" {
		f.inside.Files = append(f.inside.Files, File{"/.cargo/config.toml", fmt.Sprintf(
			"[source.crates-io]\nreplace-with = \"mirror\"\n\n[source.mirror]\nregistry = %q\n", mirror)})
	}
}

// cargoFiles adds where an index says that its files are.
func (f *finder) cargoFiles(index string) {
	text := f.read(filepath.Join(index, "config.json"))
	if text == "" {
		return
	}
	var c struct{ DL, API string }
	if json.Unmarshal([]byte(text), &c) != nil {
		f.say("cargo: what an index says of itself cannot be read")
		return
	}
	base, _, _ := strings.Cut(c.DL, "{")
	f.add(Crates, "cargo", base)
}

// forge takes the hosts that GitHub's command line is logged in to.
func (f *finder) forge() {
	dir := f.m.Getenv("GH_CONFIG_DIR")
	if dir == "" {
		dir = f.config("gh")
	}
	for line := range strings.Lines(f.read(filepath.Join("/", dir, "hosts.yml"))) {
		if host, ok := strings.CutSuffix(strings.TrimRight(line, " \r\n"), ":"); ok && host != "" && line[0] != ' ' && line[0] != '\t' && line[0] != '#' {
			f.host(GitHub, "gh", strings.Trim(host, `"'`), 443)
		}
	}
	if f.hosts[GitHub] == nil {
		f.say("gh is logged in nowhere: name the hosts of a preset %q yourself", GitHub)
	}
}
