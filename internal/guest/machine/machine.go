// Package machine sets what is the whole sandbox's: its mounts, name, clock and
// randomness. It does so for an agent that is the first process and root; each
// function does one thing, needs nothing of the others, and can be repeated.
//
// Start with [Mount], then [Name].
package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clockSlack is how far the clock may be off before it is set: setting it disturbs
// programs, and a hello is on its way for about that long.
const clockSlack = 5 * time.Millisecond

// SetClock sets the wall clock if it is off. On a kernel whose clock is the host's it
// cannot be set, and need not be: that is no error.
func SetClock(now time.Time) error {
	if d := time.Until(now); d > -clockSlack && d < clockSlack {
		return nil
	}
	tv := unix.NsecToTimeval(now.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("set clock: %w", err)
	}
	return nil
}

// Seed mixes b into the kernel's pool and, where that is allowed, counts it as
// entropy, so that clones of one snapshot do not draw the same numbers.
func Seed(b []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open pool of randomness: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return fmt.Errorf("seed pool of randomness: %w", err)
	}
	// struct rand_pool_info: bits, bytes, data. Refused without the privilege, or by a
	// kernel that has no pool of its own; the write above is then all there is.
	info := make([]byte, 8, 8+len(b))
	binary.NativeEndian.PutUint32(info, uint32(8*len(b)))
	binary.NativeEndian.PutUint32(info[4:], uint32(len(b)))
	info = append(info, b...)
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info[0])))
	return nil
}

// Identity is the name of a sandbox.
type Identity struct {
	ID       string // of the sandbox
	Hostname string
	Etc      string // directory of hostname, hosts and machine-id
}

// Name gives the sandbox its name: to the kernel, in hostname and hosts, and as a
// machine id of its own. Files that say so already are left alone.
func Name(id Identity) error {
	sum := sha256.Sum256([]byte("machine-id of " + id.ID))
	return errors.Join(
		setHostname(id.Hostname),
		update(filepath.Join(id.Etc, "hostname"), func([]byte) []byte { return []byte(id.Hostname + "\n") }),
		update(filepath.Join(id.Etc, "hosts"), func(old []byte) []byte { return hosts(old, id.Hostname) }),
		update(filepath.Join(id.Etc, "machine-id"), func([]byte) []byte {
			return []byte(hex.EncodeToString(sum[:16]) + "\n")
		}),
	)
}

func setHostname(name string) error {
	var u unix.Utsname
	if unix.Uname(&u) == nil && unix.ByteSliceToString(u.Nodename[:]) == name {
		return nil
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return nil
}

// ValidHostname reports whether name can be a host name: letters, digits, hyphens and
// dots, at most 64 bytes as the kernel takes.
func ValidHostname(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range label {
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}

// ownAddress is the address a host's own name stands for: not 127.0.0.1, so that a look-up of
// that address gives localhost.
const ownAddress = "127.0.1.1"

// hosts is a hosts file with one line for the host's own name, and localhost if it
// knows of none. What else is in it stays.
func hosts(old []byte, name string) []byte {
	var b bytes.Buffer
	if !bytes.Contains(old, []byte("localhost")) {
		b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	}
	for line := range bytes.Lines(old) {
		if f := bytes.Fields(line); len(f) > 0 && string(f[0]) == ownAddress {
			continue
		}
		b.Write(line)
	}
	if n := b.Len(); n > 0 && b.Bytes()[n-1] != '\n' {
		b.WriteByte('\n')
	}
	b.WriteString(ownAddress + "\t" + name + "\n")
	return b.Bytes()
}

// AddUser gives an ordinary user, and a group of the same name and number, entries in the
// lists of etc.
func AddUser(etc, name string, id uint32, home string) error {
	line := func(text string) func([]byte) []byte {
		return func(old []byte) []byte {
			if n := len(old); n > 0 && old[n-1] != '\n' {
				old = append(old, '\n')
			}
			return append(old, text...)
		}
	}
	return errors.Join(
		update(filepath.Join(etc, "passwd"), line(fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", name, id, id, home))),
		update(filepath.Join(etc, "group"), line(fmt.Sprintf("%s:x:%d:\n", name, id))),
	)
}

// maxEtcFile bounds what is read of a file in /etc: anything may be there. A hosts file
// that blocks what somebody does not want to reach can have some megabytes.
const maxEtcFile = 8 << 20

// update rewrites a file in place if its text should be another. It follows no link and
// keeps owner and mode, and a reader may see it half written for a moment: a rename would
// break the bind mounts that some images have here.
func update(path string, edit func(old []byte) []byte) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Base(path), err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	old, err := io.ReadAll(io.LimitReader(f, maxEtcFile+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	if len(old) > maxEtcFile {
		return fmt.Errorf("%s is longer than %d bytes: it stays as it is", filepath.Base(path), maxEtcFile)
	}
	text := edit(old)
	if bytes.Equal(old, text) {
		return nil
	}
	if _, err := f.WriteAt(text, 0); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
