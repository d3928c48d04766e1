package account

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

const passwd = `root:x:0:0:root:/root:/bin/bash
# a comment
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
nonsense
bad:x:many:1::/:/bin/sh
huge:x:4294967295:1::/:/bin/sh
user:x:1000:1000:A User,,,:/home/user:/bin/bash
twin:x:1000:1001::/home/twin:/bin/zsh
nohome:x:1002:1002:::
relative:x:1003:1003::home/x:sh
1000000:x:7:7::/seven:/bin/sh
`

const group = `root:x:0:
docker:x:999:user,other
audio:x:29:user
broken:x:x:user
user:x:1000:
`

func database(t *testing.T, passwd, group string) Database {
	t.Helper()
	dir := t.TempDir()
	d := Database{Passwd: filepath.Join(dir, "passwd"), Group: filepath.Join(dir, "group")}
	for path, text := range map[string]string{d.Passwd: passwd, d.Group: group} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestLookup(t *testing.T) {
	d := database(t, passwd, group)
	for _, c := range []struct {
		spec string
		want User
	}{
		{"", User{Name: "root", Home: "/root", Shell: "/bin/bash"}},
		{"root", User{Name: "root", Home: "/root", Shell: "/bin/bash"}},
		{"0", User{Name: "root", Home: "/root", Shell: "/bin/bash"}},
		{"user", User{"user", 1000, 1000, []uint32{999, 29}, "/home/user", "/bin/bash"}},
		{"1000", User{"user", 1000, 1000, []uint32{999, 29}, "/home/user", "/bin/bash"}},
		{"twin", User{"twin", 1000, 1001, nil, "/home/twin", "/bin/zsh"}},
		{"user:docker", User{"user", 1000, 999, []uint32{999, 29}, "/home/user", "/bin/bash"}},
		{"user:0", User{"user", 1000, 0, []uint32{999, 29}, "/home/user", "/bin/bash"}},
		{"nohome", User{"nohome", 1002, 1002, nil, "/", "/bin/sh"}},
		{"relative", User{"relative", 1003, 1003, nil, "/", "/bin/sh"}},
		{"5000", User{"5000", 5000, 0, nil, "/", "/bin/sh"}},
		{"5000:6000", User{"5000", 5000, 6000, nil, "/", "/bin/sh"}},
		{"1000000", User{"1000000", 7, 7, nil, "/seven", "/bin/sh"}}, // a name before a number
	} {
		got, err := d.Lookup(c.spec)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("Lookup(%q) = %+v, %v; want %+v", c.spec, got, err, c.want)
		}
	}
	for _, spec := range []string{"nobody-here", "bad", "huge", ":", ":5", "user:", "user:nogroup", "-1", "4294967295", "user:4294967295", "nonsense", "user\x00"} {
		_, err := d.Lookup(spec)
		var e *hutch.Error
		if !errors.As(err, &e) || e.Code != hutch.CodeBadRequest || e.Field != "user" {
			t.Errorf("Lookup(%q): %v, want a bad_request about user", spec, err)
		}
	}
}

func TestLookupWithoutFiles(t *testing.T) {
	garbage := strings.Repeat("\x00:::\xff", 1000)
	dir := t.TempDir()
	for name, d := range map[string]Database{
		"garbage": database(t, garbage, garbage),
		"missing": {Passwd: filepath.Join(dir, "none"), Group: filepath.Join(dir, "none")},
		"a dir":   {Passwd: dir, Group: dir},
		"endless": {Passwd: "/dev/zero", Group: "/dev/zero"},
	} {
		u, err := d.Lookup("")
		if err != nil || u.UID != 0 || u.GID != 0 || u.Home != "/root" {
			t.Errorf("%s: Lookup of root = %+v, %v", name, u, err)
		}
	}
}

func TestLookupInWhatIsNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	good := database(t, passwd, group)
	done := make(chan struct{})
	go func() { // an open that waits for a writer would not end by itself
		defer close(done)
		for name, path := range map[string]string{"pipe": fifo, "directory": dir} {
			for _, c := range []struct {
				spec string
				d    Database
			}{
				{"user", Database{Passwd: path, Group: good.Group}},
				{"user:docker", Database{Passwd: good.Passwd, Group: path}},
			} {
				_, err := c.d.Lookup(c.spec)
				var e *hutch.Error
				if !errors.As(err, &e) || e.Code != hutch.CodeBadRequest || e.Field != "user" || !strings.Contains(e.Message, "not a regular file") {
					t.Errorf("%s: Lookup(%q): %v, want a bad_request about user", name, c.spec, err)
				}
			}
			for _, spec := range []string{"", "root", "0", "5000:6000"} {
				if _, err := (Database{Passwd: path, Group: path}).Lookup(spec); err != nil {
					t.Errorf("%s: Lookup(%q): %v, want it found without files", name, spec, err)
				}
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("looking up waits for a writer of the pipe")
	}
}

func TestLookupFollowsLinks(t *testing.T) {
	d := database(t, passwd, group)
	dir := t.TempDir()
	linked := Database{Passwd: filepath.Join(dir, "passwd"), Group: filepath.Join(dir, "group")}
	for link, to := range map[string]string{linked.Passwd: d.Passwd, linked.Group: d.Group} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	u, err := linked.Lookup("user:docker")
	if err != nil || u.UID != 1000 || u.GID != 999 {
		t.Errorf("Lookup through links = %+v, %v", u, err)
	}
}

func FuzzDatabase(f *testing.F) {
	f.Add([]byte(passwd), []byte(group), "user")
	f.Add([]byte("a:b:1:2:c:/d:/e"), []byte("g:x:5:a,b"), "a:g")
	f.Add([]byte(":::::::"), []byte(":::"), "1:1")
	f.Fuzz(func(t *testing.T, passwd, group []byte, name string) {
		u, ok := findUser(passwd, name)
		if !ok {
			return
		}
		if u.UID == 1<<32-1 || u.GID == 1<<32-1 {
			t.Errorf("id %d:%d means \"unchanged\" to the kernel", u.UID, u.GID)
		}
		if !strings.HasPrefix(u.Home, "/") || !strings.HasPrefix(u.Shell, "/") {
			t.Errorf("home %q, shell %q", u.Home, u.Shell)
		}
		if strings.ContainsAny(u.Home+u.Shell, "\n\x00") {
			t.Errorf("home %q, shell %q cannot be in an environment", u.Home, u.Shell)
		}
		if gid, ok := findGroup(group, name); ok && gid == 1<<32-1 {
			t.Error("that group id means \"unchanged\" to the kernel")
		}
		groupsOf(group, u.Name)
	})
}
