package account

import (
	"slices"
	"strconv"

	"hutch.dev/hutch"
)

// Who a locked sandbox's default user is if its template has none but root: the account of
// this name, else of this number.
const (
	OrdinaryName = "user"
	OrdinaryID   = 1000
)

// nobodysGroup is the group of those who would be in root's.
const nobodysGroup = 65534

// Ordinary is the default user of a locked sandbox, given the template's: that one, unless
// it is root or nobody knows it; else the account "user"; else number 1000. spec finds that
// user again; it is empty if 1000 has no entry, which is then to be made. Ordinary does not
// heed Locked.
func (d Database) Ordinary(template string) (u User, spec string) {
	d.Locked = nil
	number := strconv.Itoa(OrdinaryID)
	for _, spec := range []string{template, OrdinaryName, number} {
		if spec == "" {
			continue
		}
		u, err := d.Lookup(spec)
		switch {
		case err != nil || u.UID == 0:
			continue
		case spec == number && u.Name == number:
			return User{Name: OrdinaryName, UID: OrdinaryID, GID: OrdinaryID, Home: "/home/" + OrdinaryName, Shell: "/bin/sh"}, ""
		}
		u, _ = u.ordinary(u.GID, false)
		return u, spec
	}
	return User{}, "" // not reached: a number is always found
}

// ordinary is u as a locked sandbox has it: not root, and not in root's group, to which
// files are open that others may not read. own is the group of u's entry; one that was asked
// for must be another of u's own.
func (u User) ordinary(own uint32, asked bool) (User, error) {
	switch {
	case u.UID == 0:
		return User{}, forbidden("nothing runs as root in this sandbox, whose profile is locked: leave the user out, or make a sandbox with the profile root")
	case asked && (u.GID == 0 || u.GID != own && !slices.Contains(u.Groups, u.GID)):
		return User{}, forbidden("user " + strconv.Quote(u.Name) + " gets no such group in this sandbox, whose profile is locked: nobody has rights there but his own, and none of root's")
	case u.GID == 0:
		u.GID = nobodysGroup
	}
	u.Groups = slices.DeleteFunc(u.Groups, func(gid uint32) bool { return gid == 0 })
	return u, nil
}

func forbidden(why string) error {
	return &hutch.Error{Code: hutch.CodeForbidden, Field: "user", Message: why}
}
