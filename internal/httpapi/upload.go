package httpapi

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"hutch.dev/hutch"
)

// upload is a request's body that may be of any length and take any time, as long as it
// goes on: every read has BodyTimeout anew. Nothing of it is kept.
type upload struct {
	r       io.Reader
	rc      *http.ResponseController
	info    *info
	timeout time.Duration
	err     atomic.Pointer[hutch.Error] // why it could not be read to its end
	begun   atomic.Bool
	waits   bool // its caller sends it only once it is asked for
}

// bodyOf is the body of r, whatever its length.
func (a *API) bodyOf(w http.ResponseWriter, r *http.Request) *upload {
	return &upload{
		r: r.Body, rc: http.NewResponseController(w), info: infoOf(r), timeout: a.cfg.BodyTimeout,
		waits: strings.EqualFold(r.Header.Get("Expect"), "100-continue"),
	}
}

// openUpload is the body of r, of at most MaxUpload. It is refused right away if it says
// that it is larger.
func (a *API) openUpload(w http.ResponseWriter, r *http.Request) (*upload, error) {
	u := a.bodyOf(w, r)
	if limit := a.cfg.MaxUpload; limit > 0 {
		if r.ContentLength > limit {
			u.drain()
			return nil, uploadTooLarge(limit)
		}
		u.r = http.MaxBytesReader(w, r.Body, limit)
	}
	return u, nil
}

func uploadTooLarge(limit int64) *hutch.Error {
	return hutch.Errorf(hutch.CodeTooLarge, "this server takes at most %d bytes in one call: send a larger file in parts, with upload and upload_offset", limit)
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	u.begun.Store(true)
	_ = u.rc.SetReadDeadline(time.Now().Add(u.timeout))
	n, err := u.r.Read(p)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		u.ended()
	case errors.As(err, &tooLarge):
		err = u.fail(uploadTooLarge(tooLarge.Limit))
	default:
		err = u.fail(hutch.Wrap(hutch.CodeCancelled, err, "the body ended early, or nothing of it came for %s: what was there before is as it was", u.timeout))
	}
	return n, err
}

// ended lifts the deadline, whose passing the server would take for the caller having left.
func (u *upload) ended() {
	_ = u.rc.SetReadDeadline(time.Time{})
	u.info.unread.Store(false)
}

func (u *upload) fail(e *hutch.Error) error {
	u.err.Store(e)
	return e
}

// drainTime bounds how long the rest of a refused body is read.
const drainTime = 10 * time.Second

// settle ends a call that took the body, whose outcome is err. A caller that still sends
// would see its connection reset in place of the answer, so what is left is read for a while.
func (u *upload) settle(err error) error {
	if err == nil || !u.info.unread.Load() {
		return err
	}
	if mine := u.err.Load(); mine != nil {
		err = mine
	}
	u.drain()
	return err
}

func (u *upload) drain() {
	if u.waits && !u.begun.Load() {
		return // reading would ask for what nobody wants
	}
	_ = u.rc.SetReadDeadline(time.Now().Add(min(drainTime, u.timeout)))
	if _, err := io.Copy(io.Discard, u.r); err == nil {
		u.ended()
	}
}
