package machine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Whatever an image has where the agent's directories are, only root writes there afterwards,
// and nothing elsewhere is changed for it.
func TestOwn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it gives files away")
	}
	base := t.TempDir()
	elsewhere := filepath.Join(base, "elsewhere")
	mine, linked := filepath.Join(base, "a", "mine"), filepath.Join(base, "linked")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(mine, "exec"), 0o755), os.WriteFile(filepath.Join(mine, "exec", "f"), []byte("x"), 0o600), os.Mkdir(elsewhere, 0o755),
		os.Symlink(elsewhere, filepath.Join(mine, "out")), os.Symlink(elsewhere, linked),
		os.Chmod(elsewhere, 0o777), os.Chmod(mine, 0o777), os.Chmod(filepath.Join(mine, "exec"), 0o777|fs.ModeSticky), os.Chmod(filepath.Join(mine, "exec", "f"), 0o666),
		os.Chown(elsewhere, 1000, 1000), os.Chown(mine, 1000, 1000), os.Chown(filepath.Join(mine, "exec"), 1000, 1000), os.Chown(filepath.Join(mine, "exec", "f"), 1000, 1000),
	); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{mine, linked, filepath.Join(base, "new", "dir")} {
		if err := own(dir); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]uint32{
		mine: unix.S_IFDIR | 0o711, filepath.Join(mine, "exec"): unix.S_IFDIR | 0o755, filepath.Join(mine, "exec", "f"): unix.S_IFREG | 0o644,
		filepath.Join(mine, "out"): unix.S_IFLNK | 0o777, linked: unix.S_IFDIR | 0o711, filepath.Join(base, "new", "dir"): unix.S_IFDIR | 0o711,
	} {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Uid != 0 || st.Gid != 0 || st.Mode != want {
			t.Errorf("%s is %d:%d's, mode %o, %v; want root's, %o", path, st.Uid, st.Gid, st.Mode, err, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(elsewhere, &st); err != nil || st.Uid != 1000 || st.Mode != unix.S_IFDIR|0o777 {
		t.Errorf("where a link led is %d's, mode %o, %v", st.Uid, st.Mode, err)
	}
}
