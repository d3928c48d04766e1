package template

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hutch.dev/hutch"
)

func TestPidsLeftOutAreLeftToTheControlPlane(t *testing.T) {
	small, err := ParseRecipe([]byte("name: x\nresources: {memory_mb: 128}\n"))
	if err != nil {
		t.Fatal(err)
	}
	base, err := Builtin("base")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Recipe{small, base} {
		if got := r.template().Resources; got.Pids != 0 || got.MemoryMB != r.Resources.MemoryMB {
			t.Errorf("%s: %+v, want no number of processes", r.Name, got)
		}
	}
}

func TestUpon(t *testing.T) {
	base := Recipe{
		Name: "low", Suite: "bookworm", Aliases: []string{"lowest"}, Packages: []string{"a", "sudo"}, Exclude: []string{"/x/*"},
		Users: []User{{Name: "user", UID: 1000, Sudo: true}}, Env: map[string]string{"A": "1", "B": "1"}, User: "user", Cwd: "/low",
		Resources: Resources{CPU: 2, MemoryMB: 100, DiskMB: 10, DiskTier: hutch.TierDisk, Pids: 50},
		Commands:  []Command{{Name: "done", Run: "before"}},
	}
	own := Recipe{
		Name: "up", From: "low", Packages: []string{"b", "a"}, Pip: []string{"x"}, Env: map[string]string{"B": "2"}, Cwd: "/up",
		Resources: Resources{MemoryMB: 200}, Directories: []Directory{{Path: "/d", Owner: "user"}},
	}
	want := Recipe{
		Name: "up", Suite: "bookworm", Packages: []string{"a", "b", "sudo"}, Pip: []string{"x"}, Exclude: []string{"/x/*"},
		Users: base.Users, Env: map[string]string{"A": "1", "B": "2"}, User: "user", Cwd: "/up",
		Resources:   Resources{CPU: 2, MemoryMB: 200, DiskMB: 10, DiskTier: hutch.TierDisk, Pids: 50},
		Directories: own.Directories,
	}
	if got := own.upon(base); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if base.Env["B"] != "1" {
		t.Error("the recipe below was changed")
	}
}

// FuzzDefaults reads configurations of images: what is taken over can be started with.
func FuzzDefaults(f *testing.F) {
	f.Add("1000:staff", "/srv/", "A=1", "B")
	f.Add("", "", "=", "PATH=/bin")
	f.Add("a b", "srv", "A=\x00", "HUTCH_EXEC_ID=x")
	f.Fuzz(func(t *testing.T, user, dir, one, two string) {
		d, err := defaults(v1.Config{User: user, WorkingDir: dir, Env: []string{one, two}})
		if err != nil {
			if !errors.Is(err, hutch.ErrBadRequest) {
				t.Errorf("%v, want bad_request", err)
			}
			return
		}
		if !plainPath(d.Cwd) || strings.ContainsAny(d.User, " \n\x00") {
			t.Errorf("taken over: %+v", d)
		}
		for name, value := range d.Env {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") || slices.Contains(ownVariables, name) {
				t.Errorf("taken over: %q=%q", name, value)
			}
		}
	})
}
