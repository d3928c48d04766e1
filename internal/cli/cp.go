package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/x/tarball"
)

func newCp(a *app) *cobra.Command {
	var cp copying
	c := &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files into, out of and between sandboxes",
		Long: `Copies a file, or a directory with everything in it. What is in a sandbox is written as
SANDBOX:PATH, where a path that is not absolute begins at the user's home; - is stdin or stdout.
A target that is a directory, or ends in a slash, gets the source into it.

A file appears at its target whole or not at all. Owners become the acting user's; modes are
kept, and in a directory also links and times. A link that is named itself is followed. What cannot be copied, sockets and devices, is listed on stderr.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			cp.app, cp.cl = a, cl
			return cp.run(cmd.Context(), parsePlace(args[0]), parsePlace(args[1]))
		},
	}
	f := c.Flags()
	f.StringVarP(&cp.user, "user", "u", "", "user to act as in the sandbox: a name, or uid[:gid]")
	f.StringVar(&cp.mode, "mode", "", "permissions of the file that is written, like 0755 (default: those of the source)")
	f.StringArrayVar(&cp.exclude, "exclude", nil, "leave out what matches, of a directory; like node_modules or *.pyc")
	return c
}

// place is one end of a copy.
type place struct {
	sandbox hutch.SandboxID // empty = here
	path    string          // "-" here is stdin or stdout
}

// parsePlace reads SANDBOX:PATH; anything else, also a path with a colon behind a slash, is here.
func parsePlace(s string) place {
	id, p, ok := strings.Cut(s, ":")
	if !ok || id == "" || strings.ContainsAny(id, "/.") {
		return place{path: s}
	}
	return place{hutch.SandboxID(id), p}
}

// into is the place of name below p.
func (p place) into(name string) place {
	if p.sandbox == "" {
		p.path = filepath.Join(p.path, name)
	} else {
		p.path = path.Join(p.path, name)
	}
	return p
}

func (p place) String() string {
	if p.sandbox == "" {
		return p.path
	}
	return string(p.sandbox) + ":" + p.path
}

// copying is one call of cp.
type copying struct {
	*app
	cl      *client.Client
	user    string
	mode    string
	exclude []string
}

func (c *copying) remote(p place) client.File {
	f := client.File{Sandbox: p.sandbox, Path: p.path, User: c.user}
	if f.Path == "" {
		f.Path = "~"
	}
	return f
}

// run copies what from is to where to is.
func (c *copying) run(ctx context.Context, from, to place) error {
	if from.sandbox == "" && to.sandbox == "" {
		return errors.New("neither place is in a sandbox: write one as SANDBOX:PATH")
	}
	if err := c.checkMode(to); err != nil {
		return err
	}
	isDir, mode, err := c.look(ctx, from)
	if err != nil {
		return err
	}
	if to, err = c.target(ctx, from, to); err != nil {
		return err
	}
	if isDir {
		if c.mode != "" {
			return errors.New("--mode is for a file; what is in a directory keeps its own")
		}
		return c.tree(ctx, from, to)
	}
	if len(c.exclude) > 0 {
		return errors.New("--exclude is for a directory, and " + from.String() + " is a file")
	}
	if c.mode != "" {
		mode = c.mode
	}
	return c.file(ctx, from, to, mode)
}

// checkMode refuses a --mode that is none, or that to could not get.
func (c *copying) checkMode(to place) error {
	if c.mode == "" {
		return nil
	}
	bits, err := strconv.ParseUint(c.mode, 8, 32)
	switch {
	case err != nil || bits > 0o7777:
		return fmt.Errorf("--mode %q: want permissions in octal, like 0755", c.mode)
	case to.sandbox == "" && to.path == "-":
		return errors.New("--mode is for a file, not for stdout")
	case to.sandbox == "" && bits > 0o777:
		return fmt.Errorf("--mode %s: setuid, setgid and sticky bits are for files in a sandbox", c.mode)
	}
	return nil
}

// look says whether a source is a directory, and a file's permissions.
func (c *copying) look(ctx context.Context, p place) (isDir bool, mode string, err error) {
	if p.path == "-" && p.sandbox == "" {
		return false, "", nil
	}
	if p.sandbox == "" {
		st, err := os.Stat(p.path)
		if err != nil {
			return false, "", err
		}
		return st.IsDir(), fmt.Sprintf("%04o", st.Mode().Perm()), nil
	}
	f, err := c.cl.Stat(ctx, c.remote(p))
	if err != nil {
		return false, "", fmt.Errorf("%s: %w", p, err)
	}
	if t := f.Target; t != nil {
		return t.Type == hutch.TypeDirectory, t.Permissions, nil
	}
	return f.IsDir, f.Permissions, nil
}

// target is where exactly a copy goes: into a directory under the source's name, or to the
// path as it is.
func (c *copying) target(ctx context.Context, from, to place) (place, error) {
	if to.sandbox == "" && to.path == "-" {
		return to, nil
	}
	into := to.path == "" || strings.HasSuffix(to.path, "/")
	if !into {
		isDir, _, err := c.look(ctx, to)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, hutch.ErrNotFound):
		case err != nil:
			return to, err
		default:
			into = isDir
		}
	}
	if !into {
		return to, nil
	}
	name := path.Base(filepath.ToSlash(filepath.Clean(from.path)))
	switch {
	case from.sandbox == "" && from.path == "-":
		return to, fmt.Errorf("%s is a directory: say what the file is to be called", to)
	case strings.HasSuffix(filepath.ToSlash(from.path), "/.") || name == "." || name == ".." || name == "/" || name == "~":
		return to, nil // what is in it goes where the target is, as with cp -r DIR/.
	}
	return to.into(name), nil
}

// file copies one file.
func (c *copying) file(ctx context.Context, from, to place, mode string) error {
	switch {
	case from.sandbox == "":
		in := c.Stdin
		if from.path != "-" {
			f, err := os.Open(from.path)
			if err != nil {
				return err
			}
			defer f.Close()
			in = f
		}
		return c.upload(ctx, in, to, mode)
	case to.sandbox == "" && to.path == "-":
		_, err := c.cl.ReadFile(ctx, c.remote(from), c.Stdout)
		return err
	case to.sandbox == "":
		return writeWhole(to.path, mode, func(w io.Writer) error {
			_, err := c.cl.ReadFile(ctx, c.remote(from), w)
			return err
		})
	}
	return pipe(func(w io.Writer) error {
		_, err := c.cl.ReadFile(ctx, c.remote(from), w)
		return err
	}, func(r io.Reader) error { return c.upload(ctx, r, to, mode) })
}

func (c *copying) upload(ctx context.Context, in io.Reader, to place, mode string) error {
	_, err := c.cl.WriteFile(ctx, c.remote(to), in, client.WriteOptions{Mode: mode})
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return nil
}

// writeWhole writes a file here so that it appears whole or not at all. A device or a pipe
// that is there gets the bytes as they come.
func writeWhole(name, mode string, write func(io.Writer) error) error {
	perm := os.FileMode(0o644)
	if mode != "" {
		bits, err := strconv.ParseUint(mode, 8, 32)
		if err != nil {
			return fmt.Errorf("mode %q: want octal digits", mode)
		}
		perm = os.FileMode(bits).Perm()
	}
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
		return writeInto(name, write) // /dev/null and pipes stay what they are
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".hutch-cp-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // once renamed it is not there any more
	err = write(f)
	if err == nil {
		err = f.Chmod(perm)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// writeInto writes to what is there and is no file.
func writeInto(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// tree copies a directory with what is in it.
func (c *copying) tree(ctx context.Context, from, to place) error {
	if to.sandbox == "" && to.path == "-" {
		return c.read(ctx, from, c.Stdout)
	}
	var pack func(io.Writer) error
	if from.sandbox == "" {
		pack = func(w io.Writer) error {
			skipped, err := tarball.Pack(w, from.path, c.exclude)
			c.skipped(skipped)
			return err
		}
	} else {
		pack = func(w io.Writer) error { return c.read(ctx, from, w) }
	}
	if to.sandbox == "" {
		return pipe(pack, func(r io.Reader) error {
			skipped, err := tarball.Unpack(r, to.path)
			c.skipped(skipped)
			return err
		})
	}
	if _, err := c.cl.MakeDir(ctx, to.sandbox, api.MakeDirectory{Path: c.remote(to).Path, User: c.user, Exists: true}); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return pipe(pack, func(r io.Reader) error {
		res, err := c.cl.WriteArchive(ctx, c.remote(to), r, false)
		c.skipped(res.Skipped)
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		return nil
	})
}

func (c *copying) read(ctx context.Context, from place, w io.Writer) error {
	err := c.cl.ReadArchive(ctx, c.remote(from), client.ArchiveOptions{Exclude: c.exclude}, w)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

func (c *copying) skipped(list []string) {
	for _, s := range list {
		fmt.Fprintf(c.Stderr, "hutch: not copied: %s\n", clean(s))
	}
}

// pipe runs both ends of a stream. The failure of one ends the other, and is what is
// returned, not what the other made of it.
func pipe(write func(io.Writer) error, read func(io.Reader) error) error {
	r, w := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := write(w)
		_ = w.CloseWithError(err) // nil is the end of the stream
		wrote <- err
	}()
	readErr := read(r)
	_ = r.CloseWithError(errOtherEnd)
	writeErr := <-wrote
	if writeErr != nil && !errors.Is(writeErr, errOtherEnd) {
		return writeErr
	}
	return readErr
}

var errOtherEnd = errors.New("the other end of the copy failed")
