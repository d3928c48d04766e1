package presets_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/egress/presets"
)

// machine is one with these files, variables, and clients, which are what their command line
// begins with.
func machine(t *testing.T, files, env, clients map[string]string) presets.Machine {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return presets.Machine{
		Root: root, Home: "/home/dev", Getenv: func(name string) string { return env[name] },
		Run: func(_ context.Context, name string, args ...string) ([]byte, error) {
			line := name + " " + strings.Join(args, " ")
			for begin, out := range clients {
				if strings.HasPrefix(line, begin) {
					return []byte(out), nil
				}
			}
			return nil, errors.New("no such client")
		},
	}
}

func find(t *testing.T, m presets.Machine) presets.Found {
	t.Helper()
	found, err := presets.Find(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkTrusted}, found.Env); err != nil {
		t.Fatalf("what was found is not valid: %v", err)
	}
	return found
}

// hosts are those of a preset, as host:ports.
func hosts(found presets.Found, preset string) string {
	var out []string
	for _, h := range found.Env.Presets[preset].Hosts {
		text := h.Domain
		for _, p := range h.Ports {
			text += ":" + p.String()
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func file(found presets.Found, path string) string {
	for _, f := range found.Inside.Files {
		if f.Path == path {
			return f.Text
		}
	}
	return ""
}

type texts = map[string]string

func TestFind(t *testing.T) {
	defaults := texts{
		"python3 -c":             "https://index.example/simple files.index.example\n",
		"npm config list --json": `{"registry": "https://npm.example/", "cafile": "/etc/ssl/npm.pem", "json": true}`,
		"go env -json GOPROXY":   `{"GOPROXY": "https://go.example,direct", "GOSUMDB": "sum.example", "GOPRIVATE": "corp.example"}`,
	}
	for name, tt := range map[string]struct {
		files, env, clients texts
		preset              string
		hosts               string
		path, text          string            // a file inside, and a part of it
		inside              map[string]string // variables inside
		problem             string            // a part of one
	}{
		"apt": {
			files: texts{
				"etc/apt/sources.list":             "deb http://mirror.example/debian s main\ndeb https://other.example:8443/debian s main\ndeb cdrom:[x]/ s main\ndeb mirror+http://list.example/m s main\n",
				"etc/apt/sources.list.d/a.sources": "Types: deb\nURIs: http://mirror.example/security\nSuites: s\nComponents: main\n",
			},
			preset: presets.Debian, hosts: "list.example:80 mirror.example:80 other.example:8443",
			path: "/etc/apt/apt.conf.d/82attempts", text: `Acquire::Retries "1";`,
		},
		"apt with a login":      {files: texts{"etc/apt/sources.list": "deb https://bob:hunter2@mirror.example/debian s main\n"}, preset: presets.Debian, hosts: "mirror.example:443", problem: `apt has a login for "mirror.example", which stays outside`},
		"apt through Tor":       {files: texts{"etc/apt/sources.list": "deb tor+http://onion.example/debian s main\n"}, preset: presets.Debian, problem: "Tor"},
		"apt at an address":     {files: texts{"etc/apt/sources.list": "deb http://10.0.0.5/debian s main\n"}, preset: presets.Debian, problem: `"10.0.0.5", which is no host name`},
		"apt without a source":  {preset: presets.Debian, problem: `there is no preset "debian"`},
		"apt, a broken entry":   {files: texts{"etc/apt/sources.list": "deb http://mirror.example/debian s main\nrpm x\n"}, preset: presets.Debian, hosts: "mirror.example:80", problem: "apt: some of its sources"},
		"pip's own default":     {clients: defaults, preset: presets.PyPI, hosts: "files.index.example:443 index.example:443", path: "/etc/pip.conf", text: "[global]\nretries = 1\n"},
		"pip without a default": {preset: presets.PyPI, problem: `set index-url in /etc/pip.conf`},
		"pip, odd default":      {clients: texts{"python3 -c": "Traceback\n"}, preset: presets.PyPI, problem: `set index-url`},
		"pip, no index":         {files: texts{"etc/pip.conf": "[global]\nno-index = true\nfind-links = https://wheels.example/list /opt/wheels\n"}, clients: defaults, preset: presets.PyPI, hosts: "wheels.example:443", path: "/etc/pip.conf", text: "find-links = https://wheels.example/list\n"},
		"pip, set in files": {
			files: texts{
				"etc/pip.conf":                  "[global]\nindex-url = http://weak.example/simple\ntrusted-host = pip.example\n[list]\nindex-url = http://no.example\n",
				"home/dev/.config/pip/pip.conf": "[global]\nindex_url: nothing\nindex-url = http://pip.example/simple\nextra-index-url =\n    https://one.example/simple\n    https://u:pw@two.example/simple\n",
			},
			clients: defaults, preset: presets.PyPI, hosts: "one.example:443 pip.example:80 two.example:443",
			path: "/etc/pip.conf", text: "index-url = http://pip.example/simple\nextra-index-url = https://one.example/simple\n    https://two.example/simple\ntrusted-host = pip.example\n",
			inside: texts{"UV_DEFAULT_INDEX": "http://pip.example/simple"}, problem: `pip has a login for "two.example"`,
		},
		"pip, set by a variable": {files: texts{"etc/pip.conf": "[global]\nindex-url = http://weak.example/simple\n"}, env: texts{"PIP_INDEX_URL": "https://var.example/simple"}, preset: presets.PyPI, hosts: "var.example:443"},
		"pip, no files wanted":   {files: texts{"etc/pip.conf": "[global]\nindex-url = http://weak.example/simple\n"}, env: texts{"PIP_CONFIG_FILE": os.DevNull}, clients: defaults, preset: presets.PyPI, hosts: "files.index.example:443 index.example:443"},
		"pip, a file of its own": {files: texts{"srv/pip.conf": "[install]\nindex-url = http://own.example/simple\n"}, env: texts{"PIP_CONFIG_FILE": "/srv/pip.conf"}, preset: presets.PyPI, hosts: "own.example:80"},
		"npm": {
			clients: defaults, preset: presets.NPM, hosts: "npm.example:443",
			inside: texts{"NPM_CONFIG_REGISTRY": "https://npm.example/", "YARN_NPM_REGISTRY_SERVER": "https://npm.example", "NPM_CONFIG_FETCH_RETRIES": "1", "NPM_CONFIG_GLOBALCONFIG": ""},
		},
		"npm with scopes": {
			clients: texts{"npm config list --json": `{"registry": "https://npm.example/", "@corp:registry": "https://bob:hunter2@corp.example/npm/"}`},
			preset:  presets.NPM, hosts: "corp.example:443 npm.example:443", path: "/etc/npmrc", text: "@corp:registry=https://corp.example/npm/\n",
			inside: texts{"NPM_CONFIG_GLOBALCONFIG": "/etc/npmrc"}, problem: "npm has a login for",
		},
		"npm, only its file":    {files: texts{"home/dev/.npmrc": "registry=https://file.example/\n//file.example/:_authToken=hunter2\n"}, preset: presets.NPM, hosts: "file.example:443", problem: "npm has a login, which stays outside"},
		"npm, only a variable":  {env: texts{"npm_config_registry": "http://var.example:4873"}, preset: presets.NPM, hosts: "var.example:4873"},
		"npm that says nothing": {clients: texts{"npm config list --json": "oops"}, preset: presets.NPM, problem: "npm says nothing that can be read"},
		"no npm":                {preset: presets.NPM, problem: "set registry in /etc/npmrc"},
		"go": {
			clients: defaults, preset: presets.Golang, hosts: "go.example:443 sum.example:443", problem: "from where they live",
			inside: texts{"GOPROXY": "https://go.example,direct", "GOSUMDB": "sum.example", "GOPRIVATE": "corp.example"},
		},
		"go with a login": {
			clients: texts{"go env": `{"GOPROXY": "https://bob:hunter2@one.example/go|https://two.example,off", "GOSUMDB": "sum.example+033de0ae+Ac4 https://sum.mirror.example"}`},
			preset:  presets.Golang, hosts: "one.example:443 sum.mirror.example:443 two.example:443", problem: "go has a login",
			inside: texts{"GOPROXY": "https://one.example/go|https://two.example,off", "GOSUMDB": "sum.example+033de0ae+Ac4 https://sum.mirror.example"},
		},
		"go, only its file":    {files: texts{"home/dev/.config/go/env": "GOPROXY=https://file.example\nGOSUMDB=off\n"}, preset: presets.Golang, hosts: "file.example:443", inside: texts{"GOSUMDB": "off"}},
		"go, only variables":   {env: texts{"GOPROXY": "file:///srv/go,https://var.example"}, preset: presets.Golang, hosts: "var.example:443", inside: texts{"GOPROXY": "https://var.example"}},
		"go that says nothing": {clients: texts{"go env": "oops"}, preset: presets.Golang, problem: "go says nothing that can be read"},
		"no go":                {preset: presets.Golang, problem: "set GOPROXY"},
		"cargo, a mirror": {
			files: texts{
				"home/dev/.cargo/config.toml": "[source.crates-io]\n  replace-with=\"corp\"  # ours\n[source.\"corp\"]\n  registry=\"sparse+https://bob:hunter2@crates.example/index/\"\n[registries.more]\nindex = 'sparse+https://more.example/'\n[http]\ncainfo = \"/etc/ssl/cargo.pem\"\n",
				"home/dev/.cargo/registry/index/unused.example-0123456789abcdef/config.json": "{}",
			},
			preset: presets.Crates, hosts: "crates.example:443 more.example:443", path: "/.cargo/config.toml", text: `registry = "sparse+https://crates.example/index/"`, problem: "cargo has a login",
			inside: texts{"CARGO_NET_RETRY": "1"},
		},
		"cargo, what it used": {
			files:  texts{"home/dev/.cargo/registry/index/index.crates.example-0123456789abcdef/config.json": `{"dl": "https://static.crates.example/{crate}/{version}", "api": "https://crates.example"}`, "home/dev/.cargo/registry/index/other/x": ""},
			preset: presets.Crates, hosts: "index.crates.example:443 static.crates.example:443",
		},
		"cargo elsewhere": {files: texts{"srv/cargo/config": "[registry]\nindex = \"https://index.example/\"\n"}, env: texts{"CARGO_HOME": "/srv/cargo"}, preset: presets.Crates, hosts: "index.example:443"},
		"no cargo":        {preset: presets.Crates, problem: "config.toml for a preset"},
		"gh":              {files: texts{"home/dev/.config/gh/hosts.yml": "# x:\nforge.example:\n    oauth_token: hunter2\n    users:\n        bob:\n\"corp.example\":\n"}, preset: presets.GitHub, hosts: "corp.example:443 forge.example:443"},
		"gh elsewhere":    {files: texts{"srv/gh/hosts.yml": "forge.example:\n"}, env: texts{"GH_CONFIG_DIR": "/srv/gh"}, preset: presets.GitHub, hosts: "forge.example:443"},
		"no gh":           {preset: presets.GitHub, problem: "name the hosts of a preset"},
		"not understood":  {env: texts{"PIP_INDEX_URL": "http://bob:hun%ter2@pip.example/"}, preset: presets.PyPI, problem: "pip: one of its addresses cannot be understood"},
		"an odd port":     {env: texts{"PIP_INDEX_URL": "http://pip.example:0/"}, preset: presets.PyPI, problem: "no valid port"},
	} {
		t.Run(name, func(t *testing.T) {
			found := find(t, machine(t, tt.files, tt.env, tt.clients))
			if got := hosts(found, tt.preset); got != tt.hosts {
				t.Errorf("preset %s has %q, want %q", tt.preset, got, tt.hosts)
			}
			if got := file(found, tt.path); !strings.Contains(got, tt.text) {
				t.Errorf("%s is %q, want %q in it", tt.path, got, tt.text)
			}
			for k, want := range tt.inside {
				if got := found.Inside.Env[k]; got != want {
					t.Errorf("%s is %q, want %q", k, got, want)
				}
			}
			if tt.problem != "" && !slices.ContainsFunc(found.Problems, func(p string) bool { return strings.Contains(p, tt.problem) }) {
				t.Errorf("problems %q, want one with %q", found.Problems, tt.problem)
			}
			all, err := json.Marshal(found)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(all), "hunter2") || strings.Contains(string(all), "bob") {
				t.Errorf("a login got in: %s", all)
			}
		})
	}
}

// A forge is where something could be published, so it takes more than "trusted".
func TestTrusted(t *testing.T) {
	found := find(t, machine(t, texts{"home/dev/.config/gh/hosts.yml": "forge.example:\n"}, texts{"GOPROXY": "https://go.example"}, nil))
	if !slices.Equal(found.Env.Trusted, []string{presets.Golang}) {
		t.Errorf("trusted are %v", found.Env.Trusted)
	}
	found = find(t, machine(t, nil, nil, nil))
	if len(found.Env.Trusted) != 0 || len(found.Inside.Files) != 0 || len(found.Inside.Env) != 0 {
		t.Errorf("of a machine without clients: %+v", found)
	}
}

func TestCertificates(t *testing.T) {
	found := find(t, machine(t, nil, texts{"PIP_CERT": "/etc/ssl/a.pem", "SSL_CERT_FILE": "/etc/ssl/b.pem", "NODE_EXTRA_CA_CERTS": "/etc/ssl/a.pem", "CURL_CA_BUNDLE": "relative.pem"}, nil))
	if !slices.Equal(found.Inside.CAs, []string{"/etc/ssl/a.pem", "/etc/ssl/b.pem"}) {
		t.Errorf("got %v", found.Inside.CAs)
	}
}

// Where a mirror has a private address, that address is opened, for that mirror.
func TestExceptions(t *testing.T) {
	m := machine(t, texts{"etc/apt/sources.list": "deb http://mirror.example/debian s main\ndeb http://cloud.example/debian s main\n"},
		texts{"GOPROXY": "https://go.example", "PIP_INDEX_URL": "https://pip.example/", "npm_config_registry": "https://npm.example"}, nil)
	answers := map[string]string{
		"mirror.example": "10.1.2.3 ::ffff:10.1.2.3 8.8.8.8", "go.example": "10.1.2.3 fd12::5", "pip.example": "127.0.0.1", "npm.example": "203.0.113.20 203.0.113.9", "cloud.example": "169.254.169.254",
	}
	m.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
		var out []netip.Addr
		for _, s := range strings.Fields(answers[host]) {
			out = append(out, netip.MustParseAddr(s))
		}
		if out == nil {
			return nil, errors.New("no such host")
		}
		return out, nil
	}
	m.Addrs = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("203.0.113.9/24"), netip.MustParsePrefix("fe80::1/64"), netip.MustParsePrefix("2001:db8::9/128")}
	found := find(t, m)
	p, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkTrusted}, found.Env)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		host, addr string
		port       uint16
		want       policy.Action
	}{
		{"mirror.example", "10.1.2.3", 80, policy.Allow},
		{"mirror.example", "8.8.8.8", 80, policy.Allow},
		{"mirror.example", "10.1.2.4", 80, policy.Deny},
		{"go.example", "10.1.2.3", 443, policy.Allow},
		{"go.example", "fd12::5", 443, policy.Allow},
		{"mirror.example", "fd12::5", 80, policy.Deny},
		{"npm.example", "203.0.113.20", 443, policy.Allow}, // a neighbour
		{"npm.example", "203.0.113.9", 443, policy.Deny},   // the machine itself
		{"pip.example", "127.0.0.1", 443, policy.Deny},
		{"cloud.example", "169.254.169.254", 80, policy.Deny},
		{"go.example", "2001:db8::9", 443, policy.Deny},
	} {
		q := policy.Query{Proto: policy.ProtoTLS, Name: tt.host, Addr: netip.MustParseAddr(tt.addr), Port: tt.port}
		if got := p.Connect(q); got.Action != tt.want {
			t.Errorf("%s at %s: %+v, want %s", tt.host, tt.addr, got, tt.want)
		}
	}
	for _, want := range []string{"pip.example: 127.0.0.1 is never reached", "cloud.example: 169.254.169.254", "npm.example: 203.0.113.9"} {
		if !slices.ContainsFunc(found.Problems, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("problems %q, want one with %q", found.Problems, want)
		}
	}
	delete(answers, "go.example")
	if found := find(t, m); !slices.ContainsFunc(found.Problems, func(s string) bool { return strings.Contains(s, "go.example cannot be resolved") }) {
		t.Errorf("problems %q", found.Problems)
	}
}

func TestFindEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := presets.Find(ctx, machine(t, nil, nil, nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	m := machine(t, texts{"etc/pip.conf": strings.Repeat("# long\n", 1<<18), "etc/npmrc/is/a/directory": ""}, nil, nil)
	found := find(t, m)
	if !slices.ContainsFunc(found.Problems, func(s string) bool { return strings.Contains(s, "/etc/pip.conf is larger") }) {
		t.Errorf("problems %q", found.Problems)
	}
	if slices.ContainsFunc(found.Problems, func(s string) bool { return strings.Contains(s, m.Root) }) {
		t.Errorf("problems %q name the test's directory", found.Problems)
	}
}
