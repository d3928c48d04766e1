package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// shown is a path as it stands in a message.
func shown(path string) string {
	if len(path) > 200 {
		path = path[:100] + "…" + path[len(path)-90:]
	}
	return fmt.Sprintf("%q", path)
}

// explain makes what the kernel said about a path an error for the caller. An error that is
// one already, and none, stay as they are.
func (a *actor) explain(err error, path string) error {
	var he *hutch.Error
	var errno unix.Errno
	switch {
	case err == nil || errors.As(err, &he):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return hutch.Wrap(hutch.CodeCancelled, err, "%s", hutch.ErrCancelled.Message)
	case !errors.As(err, &errno):
		return hutch.Wrap(hutch.CodeInternal, err, "the guest agent could not use %s", shown(path))
	}
	refuse := func(code hutch.Code, format string, args ...any) error {
		e := hutch.Wrap(code, err, format, args...)
		if code == hutch.CodeBadRequest {
			e.Field = "path"
		}
		return e
	}
	switch errno {
	case unix.ENOENT:
		return refuse(hutch.CodeNotFound, "there is nothing at %s", shown(path))
	case unix.ENOTDIR:
		return refuse(hutch.CodeNotFound, "there is nothing at %s: a part of the path is not a directory", shown(path))
	case unix.EACCES, unix.EPERM:
		return refuse(hutch.CodeForbidden, "user %s may not do that with %s", a.user.Name, shown(path))
	case unix.EROFS:
		return refuse(hutch.CodeForbidden, "%s is on a file system that cannot be written", shown(path))
	case unix.ENOSPC, unix.EDQUOT:
		return refuse(hutch.CodeDiskFull, "the sandbox's disk is full: nothing was changed at %s", shown(path))
	case unix.ELOOP:
		return refuse(hutch.CodeBadRequest, "path: %s leads through too many links, or one that only the kernel can follow", shown(path))
	case unix.ENAMETOOLONG:
		return refuse(hutch.CodeBadRequest, "path: a name in %s is longer than the file system takes", shown(path))
	case unix.EEXIST:
		return refuse(hutch.CodeConflict, "%s exists", shown(path))
	case unix.ENOTEMPTY:
		return refuse(hutch.CodeConflict, "the directory %s is not empty", shown(path))
	case unix.EISDIR:
		return refuse(hutch.CodeBadRequest, "path: %s is a directory", shown(path))
	case unix.EBUSY, unix.ETXTBSY:
		return refuse(hutch.CodeConflict, "%s is in use", shown(path))
	case unix.EFBIG:
		return refuse(hutch.CodeTooLarge, "%s would be larger than a file can be", shown(path))
	case unix.EINVAL:
		return refuse(hutch.CodeBadRequest, "path: %s does not allow that", shown(path))
	case unix.ENOTSUP, unix.ENOSYS:
		return refuse(hutch.CodeUnsupported, "the file system of %s does not support that", shown(path))
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return refuse(hutch.CodeUnavailable, "the sandbox has too many files open or no memory left")
	default:
		return refuse(hutch.CodeInternal, "%s: %s", shown(path), strings.ToLower(errno.Error()))
	}
}

// gone reports whether err says that there is nothing at a path.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// badPath is a bad_request about the path.
func badPath(format string, args ...any) error { return hutch.FieldErrorf("path", format, args...) }
