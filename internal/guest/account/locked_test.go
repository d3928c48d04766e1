package account

import (
	"errors"
	"reflect"
	"sync/atomic"
	"testing"

	"hutch.dev/hutch"
)

func TestLockedLookup(t *testing.T) {
	d := database(t, passwd+"toor:x:0:0::/root:/bin/sh\nlow:x:1010:0::/low:/bin/sh\n", group+"root:x:0:user\nshadow:x:42:\n")
	d.Locked = new(atomic.Pointer[string])
	if u, err := d.Lookup(""); err != nil || u.UID != 0 {
		t.Fatalf("root before the lock: %v, %v", u, err)
	}
	mine := "1234:99"
	d.Locked.Store(&mine)
	for _, spec := range []string{"", "root", "0", "00", "toor", "root:user", "0:1000", "user:root", "user:0", "user:shadow", "user:42", "5555:0042", "1000:1", "low:0", "5555:0", "5555:root"} {
		u, err := d.Lookup(spec)
		var e *hutch.Error
		if !errors.As(err, &e) || e.Code != hutch.CodeForbidden || e.Field != "user" {
			t.Errorf("%q: %+v, %v; want forbidden", spec, u, err)
		}
	}
	for spec, want := range map[string]User{
		"user":        {"user", 1000, 1000, []uint32{999, 29}, "/home/user", "/bin/bash"},
		"user:docker": {"user", 1000, 999, []uint32{999, 29}, "/home/user", "/bin/bash"},
		"low":         {"low", 1010, 65534, nil, "/low", "/bin/sh"},
		"5555":        {"5555", 5555, 65534, nil, "/", "/bin/sh"},
		"42":          {"42", 42, 65534, nil, "/", "/bin/sh"},
		"1234:99":     {"1234", 1234, 99, nil, "/", "/bin/sh"},
	} {
		u, err := d.Lookup(spec)
		if err != nil || !equalUsers(u, want) {
			t.Errorf("%q: %+v, %v; want %+v", spec, u, err, want)
		}
	}
	var e *hutch.Error
	if _, err := d.Lookup("no-such-user"); !errors.As(err, &e) || e.Code != hutch.CodeBadRequest {
		t.Errorf("a user who is not there: %v", err)
	}
}

func equalUsers(a, b User) bool {
	if len(a.Groups) == 0 {
		a.Groups = nil
	}
	return reflect.DeepEqual(a, b)
}

func TestOrdinary(t *testing.T) {
	for _, c := range []struct {
		passwd, template string
		uid              uint32
		spec             string
	}{
		{passwd, "", 1000, "user"},
		{passwd, "root", 1000, "user"},
		{passwd, "0:0", 1000, "user"},
		{passwd, "twin", 1000, "twin"},
		{passwd, "4711:4712", 4711, "4711:4712"},
		{passwd, "gone", 1000, "user"},
		{"node:x:1000:1000::/home/node:/bin/sh\n", "", 1000, "1000"},
		{"user:x:0:0::/:/bin/sh\n", "", 1000, ""},
		{"user:x:1001:1001::/:/bin/sh\n", "", 1001, "user"},
		{"", "root", 1000, ""},
	} {
		u, spec := database(t, c.passwd, group).Ordinary(c.template)
		if u.UID != c.uid || spec != c.spec || u.GID == 0 {
			t.Errorf("template's %q: %+v, %q; want %d, %q", c.template, u, spec, c.uid, c.spec)
		}
	}
}
