package fake

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"hutch.dev/hutch"
)

func lockedBy(p hutch.Profile) bool { return p == hutch.ProfileLocked }

// isRoot reports whether a command asks for root by name or number. Who asks for nobody gets
// the sandbox's default user.
func isRoot(user string) bool {
	name, _, _ := strings.Cut(user, ":")
	return name == "root" || name != "" && strings.Trim(name, "0") == ""
}

// userLocked is the number of the user that a command runs as: those there are.
func (g *Guest) userLocked(e *execution) string {
	name, _, _ := strings.Cut(e.Spec.User, ":")
	if name == "" && !isRoot(g.hello.Defaults.User) {
		name, _, _ = strings.Cut(g.hello.Defaults.User, ":")
	}
	switch {
	case name == "" && lockedBy(g.m.spec.Profile) || name == "user":
		return "1000"
	case name == "" || name == "root":
		return "0"
	}
	return name
}

// places are where a locked sandbox can be written to.
var places = []string{"/workspace/", "/home/user/", "/tmp/", "/var/tmp/", "/dev/shm/"}

// readOnly reports whether a file is none that can be written. In a script "" is stdout, and
// a name without a slash is in the user's home.
func (g *Guest) readOnly(file string) bool {
	file = path.Clean(file)
	return lockedBy(g.m.spec.Profile) && path.IsAbs(file) &&
		!slices.ContainsFunc(places, func(dir string) bool { return strings.HasPrefix(file, dir) })
}

func (g *Guest) refusedLocked(e *execution, file string, now time.Time) outcome {
	g.writeLocked(e, &e.Stderr, fmt.Appendf(nil, "sh: cannot create %s: Read-only file system\n", file), now)
	return ended(2)
}
