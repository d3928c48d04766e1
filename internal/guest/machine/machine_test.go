package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestValidHostname(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "box-1": true, "A.b.c9": true, strings.Repeat("x", 64): true,
		"": false, "-a": false, "a-": false, "a..b": false, ".a": false, "a b": false, "ü": false,
		"a/b": false, "a\n": false, strings.Repeat("x", 65): false,
	} {
		if got := ValidHostname(name); got != want {
			t.Errorf("ValidHostname(%q) = %t, want %t", name, got, want)
		}
	}
}

func TestHosts(t *testing.T) {
	const localhost = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	for name, c := range map[string]struct{ old, want string }{
		"empty":      {"", localhost + "127.0.1.1\tbox\n"},
		"kept":       {"127.0.0.1 localhost\n10.0.0.1 db\n", "127.0.0.1 localhost\n10.0.0.1 db\n127.0.1.1\tbox\n"},
		"replaced":   {"127.0.0.1 localhost\n127.0.1.1 old older\n# end", "127.0.0.1 localhost\n# end\n127.0.1.1\tbox\n"},
		"no newline": {"127.0.0.1 localhost", "127.0.0.1 localhost\n127.0.1.1\tbox\n"},
	} {
		got := string(hosts([]byte(c.old), "box"))
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if again := string(hosts([]byte(got), "box")); again != got {
			t.Errorf("%s: a second time gives %q", name, again)
		}
	}
}

func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	set := func(text string) func([]byte) []byte { return func([]byte) []byte { return []byte(text) } }
	for _, text := range []string{"a long text\n", "short", ""} {
		if err := update(path, set(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("file is %q (%v), want %q", b, err, text)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{link, dir} {
		if err := update(bad, set("x")); err == nil {
			t.Errorf("%s was written", bad)
		}
	}
	if b, _ := os.ReadFile(path); len(b) != 0 {
		t.Errorf("the file behind the link was written: %q", b)
	}
}

// A file that is too long to be read whole must not lose what was not read.
func TestUpdateOfALongFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	long := strings.Repeat("0.0.0.0 nowhere.example\n", maxEtcFile/24+1)
	if err := os.WriteFile(path, []byte(long), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := update(path, func(old []byte) []byte { return hosts(old, "box") }); err == nil {
		t.Error("it was changed")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != long {
		t.Errorf("%d bytes are left of %d, %v", len(b), len(long), err)
	}
}

func FuzzHosts(f *testing.F) {
	f.Add([]byte("127.0.0.1 localhost\n127.0.1.1 x"), "box")
	f.Add([]byte("\x00\xff\n\n"), "a.b")
	f.Fuzz(func(t *testing.T, old []byte, name string) {
		if !ValidHostname(name) {
			return
		}
		got := hosts(old, name)
		if !strings.HasSuffix(string(got), "127.0.1.1\t"+name+"\n") {
			t.Errorf("hosts = %q", got)
		}
		if again := hosts(got, name); string(again) != string(got) {
			t.Errorf("twice: %q, once: %q", again, got)
		}
	})
}

func TestAddUser(t *testing.T) {
	for _, old := range []string{"", "root:x:0:0::/root:/bin/sh\n", "root:x:0:0::/root:/bin/sh"} {
		dir := t.TempDir()
		if old != "" {
			for _, name := range []string{"passwd", "group"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(old), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := AddUser(dir, "user", 1000, "/home/user"); err != nil {
			t.Fatal(err)
		}
		if old != "" {
			old = strings.TrimSuffix(old, "\n") + "\n"
		}
		for name, line := range map[string]string{"passwd": "user:x:1000:1000::/home/user:/bin/sh\n", "group": "user:x:1000:\n"} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || string(got) != old+line {
				t.Errorf("%s of %q: %q, %v", name, old, got, err)
			}
		}
	}
}
