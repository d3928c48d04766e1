package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Confinement is what the processes of a locked sandbox may write to.
type Confinement struct {
	UID, GID uint32   // of the default user
	Home     string   // the user's: made if it is missing, left alone if it is somebody else's
	Own      []string // directories of the agent's, which only root writes to, whatever an image has there
}

// Where a locked sandbox's user may write besides at home: what is handed over to the user
// if not everybody may, and what is for everybody. /dev/shm is a file system of its own.
var (
	userPlaces   = []string{"/workspace"}
	publicPlaces = []string{"/tmp", "/var/tmp"}
)

// insideDir is where the tree is put together that becomes the root. In that tree it is an
// empty directory.
const insideDir = "/run/.hutch-inside"

// Confine gives the process another root, and so everything it starts: the same tree,
// read-only but for the places of c. They stay on the file system they are on, within its
// cap. Nobody finds the way back, since that takes a capability; nor does a kernel let a
// process below such a root make a user namespace, in which it would have some. It returns the
// root as it was, still writable, for the agent alone.
//
// A place for everybody that is a link, or behind one, is left alone: where the link leads
// decides.
func Confine(c Confinement) (outside *os.File, err error) {
	// Whoever has the user's id may trace what has it too: a child that is about to
	// become a command shares the agent's memory until it does.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("hide the agent's memory: %w", err)
	}
	if err := c.prepare(); err != nil {
		return nil, err
	}
	outside, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hold on to the root: %w", err)
	}
	if err = c.build(); err == nil {
		err = enterRoot(insideDir)
	}
	if err != nil {
		outside.Close()
		return nil, err
	}
	return outside, nil
}

// prepare makes the places what they are to be.
func (c Confinement) prepare() error {
	if err := os.MkdirAll(insideDir, 0o700); err != nil {
		return fmt.Errorf("make place for the root: %w", err)
	}
	for _, dir := range c.Own {
		if err := own(dir); err != nil {
			return fmt.Errorf("make %s root's: %w", dir, err)
		}
	}
	for _, dir := range publicPlaces {
		if made, err := makeDir(dir, 0o755); err != nil {
			return err
		} else if made || isPlain(dir) {
			if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
				return fmt.Errorf("open %s to everybody: %w", dir, err)
			}
		}
	}
	for _, dir := range userPlaces {
		if _, err := makeDir(dir, 0o755); err != nil {
			return err
		}
		st, err := os.Lstat(dir)
		if err != nil || !isPlain(dir) || st.Mode().Perm()&0o002 != 0 {
			continue
		}
		if err := errors.Join(os.Chown(dir, int(c.UID), int(c.GID)), os.Chmod(dir, 0o755)); err != nil {
			return fmt.Errorf("give %s to the user: %w", dir, err)
		}
	}
	if c.Home == "/" {
		return nil
	}
	made, err := makeDir(c.Home, 0o755)
	if err == nil && made {
		err = os.Chown(c.Home, int(c.UID), int(c.GID))
	}
	if err != nil {
		return fmt.Errorf("make the user's home: %w", err)
	}
	return nil
}

// own makes a directory root's alone to write to, with all that an image has in it. What else
// is there in its place gives way: a link would have the place be where it leads.
func own(dir string) error {
	if st, err := os.Lstat(dir); err == nil && !st.IsDir() {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := os.Lchown(path, 0, 0); err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		st, err := d.Info()
		if err != nil || st.Mode().Perm()&0o022 == 0 {
			return err
		}
		return os.Chmod(path, st.Mode().Perm()&^0o022)
	})
	return errors.Join(err, os.Chmod(dir, 0o711))
}

// makeDir makes a directory and those above it, if nothing is there.
func makeDir(dir string, mode fs.FileMode) (made bool, err error) {
	if _, err := os.Lstat(dir); err == nil {
		return false, nil
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return false, fmt.Errorf("make %s: %w", dir, err)
	}
	return true, nil
}

// isPlain reports whether dir is a directory at exactly that path.
func isPlain(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || real != dir {
		return false
	}
	st, err := os.Lstat(dir)
	return err == nil && st.IsDir()
}

// places are the directories to be writable, those that are.
func (c Confinement) places() []string {
	list := slices.Concat(userPlaces, publicPlaces)
	for _, dir := range c.Own {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			list = append(list, real)
		}
	}
	// A home can be any directory of the system: only one that is the user's own is opened.
	if home, err := filepath.EvalSymlinks(c.Home); err == nil && home != "/" {
		var st unix.Stat_t
		if unix.Lstat(home, &st) == nil && st.Uid == c.UID {
			list = append(list, home)
		}
	}
	return slices.DeleteFunc(list, func(dir string) bool { return !isPlain(dir) })
}

// build puts the tree together.
func (c Confinement) build() error {
	if err := unix.Mount("/", insideDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("double the root: %w", err)
	}
	if err := unix.Mount("", insideDir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	for _, dir := range c.places() {
		at := insideDir + dir
		if err := unix.Mount(dir, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("make %s writable: %w", dir, err)
		}
		if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("make %s writable: %w", dir, err)
		}
	}
	return nil
}

// enterRoot makes dir the root of the process.
func enterRoot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return nil
}

// Below is the path of name in a directory that is held open, for this process.
func Below(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), strings.TrimPrefix(name, "/"))
}

// Drop takes from the calling thread, and from what it starts, every way to gain rights: no
// program's owner or capabilities count at exec, and no capability is left that an exec as
// root would give. What the thread may do itself it keeps.
func Drop() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	// The one that the dropping itself needs goes last, so that its absence says that
	// nothing is left to do.
	if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SETPCAP, 0, 0, 0); err != nil || has == 0 {
		return err
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		err := dropBound(c)
		if errors.Is(err, unix.EINVAL) {
			break // a kernel that knows fewer
		}
		if err != nil {
			return err
		}
	}
	// What is inherited or ambient does not heed those bounds.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := clearInheritable(); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SETPCAP, 0, 0, 0)
}

func dropBound(c uintptr) error {
	if c == unix.CAP_SETPCAP {
		return nil
	}
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capability %d: %w", c, err)
	}
	return nil
}

// clearInheritable empties the set of capabilities that an exec keeps.
func clearInheritable() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("clear inheritable capabilities: %w", err)
	}
	return nil
}
