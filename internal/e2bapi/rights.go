package e2bapi

import (
	"context"
	"errors"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"

	"hutch.dev/hutch"
)

// owner is whom what is made belongs to; empty = whoever acts.
type owner struct{ user, group string }

// act does something with a file in the name of the user who is asked for, and if that user
// may not, as root, what is made then being given to the user. So does E2B's agent, which is
// root; whoever calls may name root anyway, so no caller gets a right by it. That no program
// inside gets one either, by a link that leads a caller's write elsewhere, root is not
// asked when there is a link on the way.
func (a *API) act(ctx context.Context, g hutch.Guest, ref hutch.FileRef, fn func(hutch.FileRef, owner) error) error {
	user, group, _ := strings.Cut(ref.User, ":")
	err := fn(ref, owner{user: user, group: group})
	if !errors.Is(err, hutch.ErrForbidden) || user == "" || user == "root" || user == "0" {
		return err
	}
	home, herr := g.StatFile(ctx, hutch.FileRef{Path: "~", User: ref.User})
	if herr != nil {
		return err // without a home nothing says what a path is relative to
	}
	full := absolute(ref.Path, home.Path)
	if linked(ctx, g, full) {
		return err
	}
	if group == "" {
		group = strconv.FormatUint(uint64(home.GID), 10)
	}
	return fn(hutch.FileRef{Path: full, User: "root"}, owner{user: user, group: group})
}

// linked reports whether there is a symbolic link on the way to p, or at its end.
func linked(ctx context.Context, g hutch.Guest, p string) bool {
	for p = path.Clean(p); p != "/"; p = path.Dir(p) {
		st, err := g.StatFile(ctx, hutch.FileRef{Path: p, User: "root"})
		if err == nil && st.Type == hutch.TypeSymlink || err != nil && !errors.Is(err, hutch.ErrNotFound) {
			return true
		}
	}
	return false
}

// absolute resolves a path as the guest does for a user with that home.
func absolute(p, home string) string {
	if rest, ok := strings.CutPrefix(p, "~"); ok && (rest == "" || rest[0] == '/') {
		return home + rest
	}
	if path.IsAbs(p) {
		return p
	}
	return home + "/" + p
}

// maxKept is how much of a body is kept to be sent once more: what a first try may have taken
// before it was refused.
const maxKept = 4 << 20

// content is a client's body, of which the beginning can be read again.
type content struct {
	mu     sync.Mutex // a try that has failed may still be reading
	r      io.Reader
	kept   []byte
	over   bool // more was read than is kept
	closed bool
	err    error // of the client's sending
}

// Read is for io.Reader.
func (c *content) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, io.ErrClosedPipe
	}
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	if c.over = c.over || len(c.kept)+n > maxKept; c.over {
		c.kept = nil
	} else {
		c.kept = append(c.kept, p[:n]...)
	}
	return n, err
}

// failure is how the client's sending failed; nil if it did not.
func (c *content) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// again returns the same content from its beginning, and false if that is not kept. c is of
// no use afterwards.
func (c *content) again() (*content, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return &content{r: io.MultiReader(strings.NewReader(string(c.kept)), c.r)}, !c.over && c.err == nil
}
