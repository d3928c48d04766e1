// Package account finds users in a sandbox's own /etc/passwd and /etc/group.
//
// It is a parser of files that whoever is root in the sandbox can write: anything may be
// in them, so nothing is assumed of them and what is read is bounded. Root exists
// whatever they say, so that a sandbox whose files are ruined can still be mended.
//
// Start with [Database.Lookup].
package account

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"

	"hutch.dev/hutch"
)

// maxGroups is the most supplementary groups a process can have on Linux.
const maxGroups = 65536

// User is who a command runs as.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string
	Shell  string
}

// Database is the two files.
type Database struct {
	Passwd, Group string // paths
	// Locked, once it holds the default user of a locked sandbox, lets Lookup find ordinary
	// users only: see locked.go. Nil: it never will.
	Locked *atomic.Pointer[string]
	// Cache has what was read last; nil: everything is read each time.
	Cache *Cache
}

// Lookup finds the user that spec names: "name", "uid", "name:group" or "uid:gid". Empty
// is root. A number needs no entry; its home is then "/". A name that is not there is a
// bad_request about the field "user"; so is a name that must be looked up in something
// that is not a regular file. Root and numbers are found all the same. Whom a locked sandbox
// does not let in is forbidden.
func (d Database) Lookup(spec string) (User, error) {
	u, _, err := d.LookupNames(spec)
	return u, err
}

// LookupNames is Lookup, and gives the names of all users and groups, as [Database.Names]
// does, by the same look at the files.
func (d Database) LookupNames(spec string) (User, func() Names, error) {
	l := d.look()
	u, err := l.lookup(spec, d.Locked)
	return u, l.names, err
}

// lookup is Lookup.
func (l *look) lookup(spec string, locked *atomic.Pointer[string]) (User, error) {
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" && (hasGroup || spec != "") {
		return User{}, hutch.FieldErrorf("user", "%q has no user before the colon", spec)
	}
	if hasGroup && group == "" {
		return User{}, hutch.FieldErrorf("user", "%q has no group after the colon", spec)
	}
	if name == "" {
		name = "root"
	}
	users, err := l.users()
	u, ok := findUser(users, name)
	if !ok {
		if errors.Is(err, errNotRegular) {
			return User{}, hutch.FieldErrorf("user", "%q cannot be looked up: passwd in this sandbox is %v; give a number, or mend it as root", name, errNotRegular)
		}
		return User{}, hutch.FieldErrorf("user", "there is no user %q in this sandbox", name)
	}
	groups, err := l.groups()
	own := u.GID
	if hasGroup {
		gid, ok := findGroup(groups, group)
		if !ok && errors.Is(err, errNotRegular) {
			return User{}, hutch.FieldErrorf("user", "%q cannot be looked up: group in this sandbox is %v; give a number, or mend it as root", group, errNotRegular)
		}
		if !ok {
			return User{}, hutch.FieldErrorf("user", "there is no group %q in this sandbox", group)
		}
		u.GID = gid
	}
	u.Groups = groupsOf(groups, u.Name)
	if locked != nil {
		if mine := locked.Load(); mine != nil {
			return u.ordinary(own, hasGroup && spec != *mine)
		}
	}
	return u, nil
}

// findUser looks name up, first as a name, then as a number.
func findUser(passwd []byte, name string) (User, bool) {
	uid, isNumber := parseID(name)
	var byNumber *User
	for line := range bytes.Lines(passwd) {
		u, ok := parseUser(line)
		if !ok {
			continue
		}
		if u.Name == name {
			return u, true
		}
		if isNumber && u.UID == uid && byNumber == nil {
			byNumber = &u
		}
	}
	switch {
	case byNumber != nil:
		return *byNumber, true
	case name == "root" || isNumber && uid == 0:
		return User{Name: "root", Home: "/root", Shell: "/bin/sh"}, true
	case isNumber:
		// As container runtimes do: an id without an entry is fine, in group 0.
		return User{Name: name, UID: uid, Home: "/", Shell: "/bin/sh"}, true
	}
	return User{}, false
}

// parseUser reads a line of passwd: name:password:uid:gid:comment:home:shell.
func parseUser(line []byte) (User, bool) {
	f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
	if len(f) < 6 || f[0] == "" || strings.ContainsRune(string(line), 0) {
		return User{}, false
	}
	uid, ok1 := parseID(f[2])
	gid, ok2 := parseID(f[3])
	if !ok1 || !ok2 {
		return User{}, false
	}
	u := User{Name: f[0], UID: uid, GID: gid, Home: f[5], Shell: "/bin/sh"}
	if !strings.HasPrefix(u.Home, "/") {
		u.Home = "/"
	}
	if len(f) > 6 && strings.HasPrefix(f[6], "/") {
		u.Shell = f[6]
	}
	return u, true
}

// parseGroup reads a line of group: name:password:gid:member,member.
func parseGroup(line []byte) (name string, gid uint32, members string, ok bool) {
	f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
	if len(f) < 3 || f[0] == "" {
		return "", 0, "", false
	}
	gid, ok = parseID(f[2])
	if len(f) > 3 {
		members = f[3]
	}
	return f[0], gid, members, ok
}

func findGroup(file []byte, name string) (uint32, bool) {
	for line := range bytes.Lines(file) {
		if n, gid, _, ok := parseGroup(line); ok && n == name {
			return gid, true
		}
	}
	if name == "root" {
		return 0, true
	}
	return parseID(name)
}

// groupsOf is the supplementary groups of a user.
func groupsOf(file []byte, user string) []uint32 {
	var gids []uint32
	for line := range bytes.Lines(file) {
		_, gid, members, ok := parseGroup(line)
		if !ok || len(gids) >= maxGroups {
			continue
		}
		for m := range strings.SplitSeq(members, ",") {
			if m == user {
				gids = append(gids, gid)
				break
			}
		}
	}
	return gids
}

// parseID reads a user or group id. The largest number is not one: the kernel takes it
// for "leave unchanged".
func parseID(s string) (uint32, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1
}
