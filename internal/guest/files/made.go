package files

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// made is what the acting user has just made, open. Between that and now its name may have
// come to mean something else, a link to a file of root's for one, if others may write to its
// directory: so all that it is given goes through the descriptor, which can be one of O_PATH.
type made struct{ *os.File }

// of describes it, and refuses what cannot be what the user made: something of another kind
// or of somebody else.
func (m made) of(a *actor, kind uint32) (st unix.Stat_t, err error) {
	if err := unix.Fstat(int(m.Fd()), &st); err != nil {
		return st, err
	}
	if st.Mode&unix.S_IFMT != kind || st.Uid != a.user.UID {
		return st, hutch.Errorf(hutch.CodeConflict, "%s was replaced by somebody else while it was made", shown(m.Name()))
	}
	return st, nil
}

func (m made) chown(uid, gid int) error {
	return unix.Fchownat(int(m.Fd()), "", uid, gid, unix.AT_EMPTY_PATH)
}

func (m made) chmod(mode uint32) error {
	return unix.Fchmodat(unix.AT_FDCWD, m.path(), mode, 0)
}

func (m made) times(st unix.Stat_t) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, m.path(), []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// path is a name that leads to the open file and nowhere else.
func (m made) path() string { return "/proc/self/fd/" + strconv.Itoa(int(m.Fd())) }
