package files

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

const (
	// maxUploads is how many uploads may be between two of their parts.
	maxUploads = 1000
	// uploadLife is how long the parts of an upload are kept without a new one.
	uploadLife = 24 * time.Hour
)

// uploads are the uploads of which some parts are there.
type uploads struct {
	mu   sync.Mutex
	open map[string]*upload // by the path of the file with the parts
}

// upload is one of them.
type upload struct {
	busy   bool   // a part is being written
	forget func() // removes the parts; nil if there are none
	expiry *time.Timer
}

// claim makes the caller the only one to write parts of an upload.
func (u *uploads) claim(key string) (*upload, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	up, ok := u.open[key]
	switch {
	case ok && up.busy:
		return nil, hutch.Errorf(hutch.CodeConflict, "another part of this upload is being written: send one after the other")
	case !ok && len(u.open) >= maxUploads:
		return nil, hutch.Errorf(hutch.CodeUnavailable, "%d uploads are not finished: finish one first", maxUploads)
	case !ok:
		up = &upload{}
		u.open[key] = up
	}
	up.busy = true
	if up.expiry != nil {
		up.expiry.Stop()
	}
	return up, nil
}

// release ends the claim. An upload of which parts are there is forgotten when no other
// comes for uploadLife.
func (u *uploads) release(key string, up *upload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	up.busy = false
	if up.forget == nil {
		delete(u.open, key)
		return
	}
	up.expiry = time.AfterFunc(uploadLife, func() {
		if u.expire(key, up) {
			up.forget()
		}
	})
}

// expire reports whether an upload is to be forgotten: no part has come meanwhile.
func (u *uploads) expire(key string, up *upload) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up.busy || u.open[key] != up {
		return false
	}
	delete(u.open, key)
	return true
}

// part writes a part of an upload: to a file beside the target whose name tells the upload,
// so that it goes on where it was whatever became of the calls before.
func (w *writing) part(content io.Reader) (reply guestapi.WriteReply, err error) {
	dir, err := realPath(w.to.dir)
	if err != nil {
		return reply, err
	}
	sum := sha256.Sum256([]byte(fmt.Sprintf("%d/%s/%s", w.user.UID, w.q.Upload, w.to.name)))
	w.temp = tempUpload + hex.EncodeToString(sum[:])[:tempIDLength]
	key := join(dir, w.temp)
	up, err := w.svc.uploads.claim(key)
	if err != nil {
		return reply, err
	}
	defer w.svc.uploads.release(key, up)
	st, err := w.openPart()
	if err != nil {
		return reply, err
	}
	defer w.file.Close()
	up.forget = w.forget(key, st)
	if w.q.Offset > st.Size {
		return guestapi.WriteReply{WriteResult: hutch.WriteResult{Offset: st.Size}, Gap: true}, nil
	}
	size, err := w.append(content, st.Size)
	if err != nil {
		if full(err) { // to keep the parts would only keep the disk full
			up.forget = nil
			w.discard(&err)
		}
		return reply, err
	}
	if !w.q.Last {
		return guestapi.WriteReply{WriteResult: hutch.WriteResult{Offset: size}}, nil
	}
	up.forget = nil
	defer w.discard(&err)
	if err = w.announce(); err != nil {
		return reply, err
	}
	return w.finish(size)
}

// full reports whether err says that there is no room left.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// openPart opens the file with the parts so far, and describes it.
func (w *writing) openPart() (st unix.Stat_t, err error) {
	err = w.do(w.ctx, func() error {
		f, err := w.open(w.to.fd(), w.temp, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return err
		}
		err = unix.Fstat(int(f.Fd()), &st)
		if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != w.user.UID || st.Nlink != 1) {
			err = hutch.Errorf(hutch.CodeConflict, "somebody else's file is where this upload would be: choose another name for it")
		}
		// One that nobody in this agent's life has written to, and none for long before.
		if err == nil && time.Since(time.Unix(st.Mtim.Unix())) > uploadLife {
			st.Size, err = 0, f.Truncate(0)
		}
		if err != nil {
			f.Close()
			return err
		}
		w.file = f
		return nil
	})
	return st, err
}

// append writes what content has beyond the size bytes that are there, and says how long the
// file is then.
func (w *writing) append(content io.Reader, size int64) (int64, error) {
	skip := size - w.q.Offset
	n, err := io.CopyN(io.Discard, content, skip)
	if n < skip {
		if errors.Is(err, io.EOF) {
			return size, nil // all of it is there already
		}
		return size, cutShort(err)
	}
	if _, err := w.file.Seek(size, io.SeekStart); err != nil {
		return size, err
	}
	n, err = copyIn(w.file, content)
	return size + n, err
}

// announce gives the whole upload a name that says what it will do to its target.
func (w *writing) announce() error {
	kind := tempNew
	if w.old != nil {
		kind = tempOld
	}
	return w.do(w.ctx, func() error {
		name := tempName(kind)
		err := unix.Renameat(w.to.fd(), w.temp, w.to.fd(), name)
		if err == nil {
			w.temp = name
		}
		return err
	})
}

// forget makes a function that removes the file of an upload that nobody continued, unless
// another file has taken its place.
func (w *writing) forget(name string, st unix.Stat_t) func() {
	user := w.user
	return func() {
		_ = user.Do(func() error {
			var now unix.Stat_t
			if err := unix.Lstat(name, &now); err != nil || now.Ino != st.Ino || now.Dev != st.Dev {
				return err
			}
			return unix.Unlink(name)
		})
	}
}
