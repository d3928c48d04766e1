package account

import (
	"bytes"
	"strconv"

	"hutch.dev/hutch"
)

// Names are the names of ids, as ls(1) shows them.
type Names struct {
	users, groups map[uint32]string
}

// Names reads the names of all users and groups. What cannot be read has none.
func (d Database) Names() Names { return d.look().names() }

// names is Names.
func (l *look) names() Names {
	n := Names{users: map[uint32]string{}, groups: map[uint32]string{}}
	users, _ := l.users() // without it numbers are shown
	for line := range bytes.Lines(users) {
		if u, ok := parseUser(line); ok {
			if _, taken := n.users[u.UID]; !taken {
				n.users[u.UID] = u.Name
			}
		}
	}
	groups, _ := l.groups()
	for line := range bytes.Lines(groups) {
		if name, gid, _, ok := parseGroup(line); ok {
			if _, taken := n.groups[gid]; !taken {
				n.groups[gid] = name
			}
		}
	}
	return n
}

// User is the name of a user, or the number if there is none.
func (n Names) User(uid uint32) string { return nameOf(n.users, uid) }

// Group is the name of a group, or the number if there is none.
func (n Names) Group(gid uint32) string { return nameOf(n.groups, gid) }

func nameOf(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	if id == 0 {
		return "root"
	}
	return strconv.FormatUint(uint64(id), 10)
}

// UserID finds the id of a user by name or number; a name that is not there is a
// bad_request about field.
func (d Database) UserID(field, name string) (uint32, error) {
	users, _ := d.look().users()
	u, ok := findUser(users, name)
	if !ok {
		return 0, hutch.FieldErrorf(field, "there is no user %.80q in this sandbox", name)
	}
	return u.UID, nil
}

// GroupID finds the id of a group by name or number; a name that is not there is a
// bad_request about field.
func (d Database) GroupID(field, name string) (uint32, error) {
	groups, _ := d.look().groups()
	gid, ok := findGroup(groups, name)
	if !ok {
		return 0, hutch.FieldErrorf(field, "there is no group %.80q in this sandbox", name)
	}
	return gid, nil
}
