package template_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/template"
)

const full = `
name: demo
description: a demonstration
suite: bookworm
packages: [sudo, git, bash, git]
exclude: [/usr/share/man/*]
keep: [/usr/share/man/keep]
users:
  - {name: user, uid: 1000, groups: [staff], sudo: true}
directories:
  - {path: /workspace, mode: "1777", owner: user}
files:
  - path: /etc/motd
    content: |
      hello
env: {LANG: C.UTF-8}
commands:
  - {name: greet, run: echo hello, timeout: 90s}
  - {name: wait, run: sleep 1}
user: user
cwd: /workspace
resources: {cpu: 0.5, memory_mb: 512, disk_mb: 100, disk_tier: memory, pids: 64}
`

func TestParseRecipe(t *testing.T) {
	got, err := template.ParseRecipe([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	want := template.Recipe{
		Name: "demo", Description: "a demonstration", Suite: "bookworm",
		Packages: []string{"bash", "git", "sudo"}, Exclude: []string{"/usr/share/man/*"}, Keep: []string{"/usr/share/man/keep"},
		Users:       []template.User{{Name: "user", UID: 1000, Shell: "/bin/sh", Groups: []string{"staff"}, Sudo: true}},
		Directories: []template.Directory{{Path: "/workspace", Mode: 0o1777, Owner: "user"}},
		Files:       []template.File{{Path: "/etc/motd", Content: "hello\n", Mode: 0o644}},
		Env:         map[string]string{"LANG": "C.UTF-8"},
		Commands: []template.Command{
			{Name: "greet", Run: "echo hello", Timeout: 90 * time.Second},
			{Name: "wait", Run: "sleep 1", Timeout: template.DefaultCommandTimeout},
		},
		User: "user", Cwd: "/workspace",
		Resources: template.Resources{CPU: 0.5, MemoryMB: 512, DiskMB: 100, DiskTier: hutch.TierMemory, Pids: 64},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestBuiltinsAreValid(t *testing.T) {
	if names := template.Builtins(); !reflect.DeepEqual(names, []string{"base", "code-interpreter"}) {
		t.Errorf("built-in recipes: %v", names)
	}
	for _, name := range template.Builtins() {
		r, err := template.Builtin(name)
		if err != nil || r.Name != name {
			t.Errorf("%s: name %q, %v", name, r.Name, err)
		}
	}
	if _, err := template.Builtin("nosuch"); !errors.Is(err, hutch.ErrNotFound) || !strings.Contains(err.Error(), "base") {
		t.Errorf("an unknown name: %v, want not found with the names there are", err)
	}
}

func TestParseRecipeRefuses(t *testing.T) {
	tests := map[string]struct{ yaml, field, want string }{
		"nothing":                {"", "", "empty"},
		"an alias that is none":  {"name: x\naliases: [No]", "aliases[0]", "no name"},
		"an alias twice":         {"name: x\naliases: [x]", "aliases[0]", "already"},
		"a base that is no name": {"name: x\nfrom: ../y", "from", "no name"},
		"pip without pip":        {"name: x\npip: [numpy]", "pip", "python3-pip"},
		"an option of pip":       {"name: x\nfrom: y\npip: [--index-url=x]", "pip[0]", "no requirement"},
		"a path for pip":         {"name: x\nfrom: y\npip: [./x.whl]", "pip[0]", "no requirement"},
		"an address for pip":     {"name: x\nfrom: y\npip: ['x @ http://y.example/x.whl']", "pip[0]", "no requirement"},
		"a file of requirements": {"name: x\nfrom: y\npip: [-r/etc/passwd]", "pip[0]", "no requirement"},
		"not YAML":               {"name: [", "", "read recipe"},
		"a tag":                  {"name: x\npackages: !t\n", "", "read recipe"},
		"duration without unit":  {"name: x\ncommands: [{name: a, run: ls, timeout: 30}]\n", "", "line 2"},
		"a list":                 {"- name: x", "", "read recipe"},
		"unknown field":          {"name: x\nimage: y\n", "", "image"},
		"unknown field, nested":  {"name: x\nusers: [{name: u, uid: 1000, password: y}]\n", "", "password"},
		"a field twice":          {"name: x\nname: y\n", "", "name"},
		"two documents":          {"name: x\n---\nname: y\n", "", "one YAML document"},
		"no name":                {"suite: bookworm\n", "name", "template name"},
		"bad name":               {"name: Ä\n", "name", "template name"},
		"bad suite":              {"name: x\nsuite: ../x\n", "suite", "no suite"},
		"bad package":            {"name: x\npackages: [\"a,b\"]\n", "packages[0]", "package name"},
		"option as package":      {"name: x\npackages: [\"--x\"]\n", "packages[0]", "package name"},
		"bad pattern":            {"name: x\nexclude: [\"usr/*\"]\n", "exclude[0]", "pattern"},
		"pattern with a newline": {"name: x\nkeep: [\"/usr\\nforce-all\"]\n", "keep[0]", "pattern"},
		"bad user":               {"name: x\nusers: [{name: \"a b\", uid: 1000}]\n", "users[0].name", "account name"},
		"root again":             {"name: x\nusers: [{name: root, uid: 1000}]\n", "users[0].name", "already"},
		"system uid":             {"name: x\nusers: [{name: u, uid: 0}]\n", "users[0].uid", "not in 1000"},
		"a uid twice":            {"name: x\nusers: [{name: u, uid: 1000}, {name: v, uid: 1000}]\n", "users[1].uid", "taken"},
		"sudo without sudo":      {"name: x\nusers: [{name: u, uid: 1000, sudo: true}]\n", "users[0].sudo", "package sudo"},
		"bad shell":              {"name: x\nusers: [{name: u, uid: 1000, shell: bash}]\n", "users[0].shell", "absolute"},
		"bad group":              {"name: x\nusers: [{name: u, uid: 1000, groups: [\"a,b\"]}]\n", "users[0].groups", "group name"},
		"relative path":          {"name: x\nfiles: [{path: etc/x}]\n", "files[0].path", "absolute"},
		"path that climbs":       {"name: x\nfiles: [{path: /../etc/x}]\n", "files[0].path", "absolute"},
		"the root":               {"name: x\ndirectories: [{path: /}]\n", "directories[0].path", "absolute"},
		"a path twice":           {"name: x\ndirectories: [{path: /a}]\nfiles: [{path: /a}]\n", "files[0].path", "already"},
		"unknown owner":          {"name: x\nfiles: [{path: /a, owner: builder}]\n", "files[0].owner", "no user"},
		"decimal mode":           {"name: x\nfiles: [{path: /a, mode: \"0888\"}]\n", "", "octal"},
		"huge mode":              {"name: x\nfiles: [{path: /a, mode: \"77777\"}]\n", "", "larger"},
		"bad variable":           {"name: x\nenv: {\"A B\": c}\n", "env", "variable"},
		"line break in value":    {"name: x\nenv: {A: \"b\\nc\"}\n", "env", "line break"},
		"command without name":   {"name: x\ncommands: [{run: ls}]\n", "commands[0].name", "name"},
		"command without script": {"name: x\ncommands: [{name: a, run: \" \"}]\n", "commands[0].run", "script"},
		"long timeout":           {"name: x\ncommands: [{name: a, run: ls, timeout: 7h}]\n", "commands[0].timeout", "6h"},
		"negative timeout":       {"name: x\ncommands: [{name: a, run: ls, timeout: -1s}]\n", "commands[0].timeout", "6h"},
		"unknown default user":   {"name: x\nuser: builder\n", "user", "no user"},
		"relative cwd":           {"name: x\ncwd: work\n", "cwd", "absolute"},
		"no cpu":                 {"name: x\nresources: {cpu: -1}\n", "resources.cpu", "not in"},
		"cpu that is no number":  {"name: x\nresources: {cpu: .nan}\n", "resources.cpu", "not in"},
		"little memory":          {"name: x\nresources: {memory_mb: 1}\n", "resources.memory_mb", "not in"},
		"huge disk":              {"name: x\nresources: {disk_mb: 99999999999}\n", "resources.disk_mb", "not in"},
		"unknown tier":           {"name: x\nresources: {disk_tier: tape}\n", "resources.disk_tier", "neither"},
		"few pids":               {"name: x\nresources: {pids: 1}\n", "resources.pids", "not in"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := template.ParseRecipe([]byte(tt.yaml))
			var e *hutch.Error
			if !errors.As(err, &e) || e.Code != hutch.CodeBadRequest || e.Field != tt.field || !strings.Contains(e.Message, tt.want) {
				t.Errorf("got %v (field %q), want a bad request about %q with %q", err, fieldOf(e), tt.field, tt.want)
			}
		})
	}
	if _, err := template.ParseRecipe(make([]byte, 5<<20)); !errors.Is(err, hutch.ErrTooLarge) {
		t.Errorf("a huge recipe: %v, want too large", err)
	}
}

func fieldOf(e *hutch.Error) string {
	if e == nil {
		return ""
	}
	return e.Field
}

func TestHashIsOfWhatGetsIntoTheImage(t *testing.T) {
	parse := func(old, new string) template.Recipe {
		t.Helper()
		if !strings.Contains(full, old) {
			t.Fatalf("%q is not in the recipe", old)
		}
		r, err := template.ParseRecipe([]byte(strings.Replace(full, old, new, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	base := parse("demo", "demo").Hash()
	for _, same := range [][2]string{
		{"name: demo", "name: other"},
		{"description: a demonstration", ""},
		{"[sudo, git, bash, git]", "[bash, git, sudo]"},
		{"user: user\n", "\n"},
		{"cwd: /workspace", ""},
		{"cpu: 0.5", "cpu: 4"},
	} {
		if got := parse(same[0], same[1]).Hash(); got != base {
			t.Errorf("%q for %q makes another hash", same[1], same[0])
		}
	}
	for _, other := range [][2]string{
		{"[sudo, git, bash, git]", "[sudo, git]"},
		{"/usr/share/man/*", "/usr/share/doc/*"},
		{"uid: 1000", "uid: 1001"},
		{`mode: "1777"`, `mode: "0777"`},
		{"      hello", "      goodbye"},
		{"C.UTF-8", "C"},
		{"run: echo hello", "run: echo goodbye"},
	} {
		if got := parse(other[0], other[1]).Hash(); got == base {
			t.Errorf("%q for %q makes the same hash", other[1], other[0])
		}
	}
}

func FuzzParseRecipe(f *testing.F) {
	f.Add(full)
	f.Add("name: x\nfiles: [{path: /a, mode: \"0777\"}]\n")
	f.Add("name: x\nresources: {cpu: .inf}\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := template.ParseRecipe([]byte(text))
		if err != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatalf("parsed, and then not valid: %v", err)
		}
		for _, file := range r.Files {
			if !strings.HasPrefix(file.Path, "/") || strings.Contains(file.Path, "..") && strings.Contains(file.Path, "/../") {
				t.Fatalf("path %q", file.Path)
			}
		}
		if first, again := r.Hash(), r.Hash(); first != again {
			t.Fatal("hash differs from call to call")
		}
	})
}
