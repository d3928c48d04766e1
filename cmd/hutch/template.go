package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/store/sqlite"
	"hutch.dev/hutch/internal/template"
)

// templateCommands work on this machine's data directory, beside a server that runs or
// before one does.
func templateCommands() []*cobra.Command {
	return []*cobra.Command{newTemplateBuild(), newTemplateRm(), newTemplateAlias()}
}

// templateDirs adds the flags that say where templates are.
func templateDirs(c *cobra.Command, cfg *serveConfig) {
	f := c.Flags()
	f.StringVar(&cfg.dataDir, "data-dir", defaultDataDir(), "data directory of the server")
	f.StringVar(&cfg.cacheDir, "cache-dir", os.Getenv(rootfs.DirEnv), "where root images are kept (default: in the data directory)")
}

// templateStore is the records that template commands work on.
type templateStore interface {
	store.Templates
	Sandboxes(ctx context.Context, f store.SandboxFilter, p store.Page) ([]hutch.Sandbox, string, error)
}

// withStore opens the data directory's records for use.
func (c serveConfig) withStore(ctx context.Context, use func(templateStore) error) error {
	if err := os.MkdirAll(c.dataDir, 0o700); err != nil {
		return err
	}
	st, err := sqlite.Open(ctx, filepath.Join(c.dataDir, dbFile))
	if err != nil {
		return err
	}
	return errors.Join(use(st), st.Close())
}

func newTemplateRm() *cobra.Command {
	var cfg serveConfig
	c := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove templates on this machine, with images that nothing else needs",
		Long: "Removes templates from the records. The image of each goes too, unless another template\n" +
			"or a sandbox that is alive was made from it, it is pinned, or images are kept in a cache\n" +
			"that other data directories may share (--cache-dir).",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cfg.withStore(cmd.Context(), func(st templateStore) error {
				for _, name := range args {
					if err := removeTemplate(cmd.Context(), cfg, st, name, cmd.OutOrStdout()); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	templateDirs(c, &cfg)
	return c
}

func removeTemplate(ctx context.Context, cfg serveConfig, st templateStore, name string, out io.Writer) error {
	t, err := st.Template(ctx, name)
	if err != nil {
		return err
	}
	if t.Name != name {
		return fmt.Errorf("%s is an alias of %s: remove that, or end the alias with: hutch template alias --rm %s %s", name, t.Name, t.Name, name)
	}
	if err := st.DeleteTemplate(ctx, name); err != nil {
		return err
	}
	why, err := keepImage(ctx, cfg, st, t.Image)
	if err == nil && why == "" {
		err = rootfs.New(rootfs.Config{Dir: cfg.imageDir()}).Remove(t.Image)
		if err == nil {
			err = newBuilder(cfg.imageDir(), slog.New(slog.DiscardHandler)).Forget(t.Recipe)
		}
		switch {
		case errors.Is(err, hutch.ErrConflict):
			why, err = "it is pinned", nil
		case errors.Is(err, hutch.ErrNotFound):
			why, err = "it was not there", nil
		}
	}
	if err != nil {
		return fmt.Errorf("template %s is removed, its image %s is not: %w", name, t.Image, err)
	}
	if why != "" {
		_, err = fmt.Fprintf(out, "template %s removed; image %s stays: %s\n", name, t.Image, why)
	} else {
		_, err = fmt.Fprintf(out, "template %s removed, with image %s\n", name, t.Image)
	}
	return err
}

// keepImage says why an image must stay; empty = nothing needs it.
func keepImage(ctx context.Context, cfg serveConfig, st templateStore, image string) (why string, err error) {
	if filepath.Clean(cfg.imageDir()) != filepath.Clean(cfg.dataDir) {
		return "other data directories may share the cache it is in", nil
	}
	others, err := st.Templates(ctx)
	if err != nil {
		return "", err
	}
	for _, t := range others {
		if t.Image == image {
			return "template " + t.Name + " has it too", nil
		}
	}
	for page := (store.Page{}); ; {
		list, next, err := st.Sandboxes(ctx, store.SandboxFilter{}, page)
		if err != nil {
			return "", err
		}
		for _, sb := range list {
			if sb.Image == image && sb.State != hutch.StateDead {
				return "sandbox " + string(sb.ID) + " was made from it", nil
			}
		}
		if page.Cursor = next; next == "" {
			return "", nil
		}
	}
}

func newTemplateAlias() *cobra.Command {
	var cfg serveConfig
	var remove bool
	c := &cobra.Command{
		Use:   "alias NAME ALIAS...",
		Short: "Give a template further names on this machine, or take them away",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cfg.withStore(cmd.Context(), func(st templateStore) error {
				return aliasTemplate(cmd.Context(), st, args[0], args[1:], remove, cmd.OutOrStdout())
			})
		},
	}
	templateDirs(c, &cfg)
	c.Flags().BoolVar(&remove, "rm", false, "take the names away")
	return c
}

func aliasTemplate(ctx context.Context, st templateStore, name string, aliases []string, remove bool, out io.Writer) error {
	t, err := st.Template(ctx, name)
	if err != nil {
		return err
	}
	for _, a := range aliases {
		if err := template.CheckAlias(a); err != nil {
			return err
		}
		has := slices.Contains(t.Aliases, a)
		switch {
		case remove && !has:
			return fmt.Errorf("%s is no alias of %s", a, t.Name)
		case remove:
			t.Aliases = slices.DeleteFunc(slices.Clone(t.Aliases), func(old string) bool { return old == a })
		case !has:
			t.Aliases = append(slices.Clone(t.Aliases), a)
		}
	}
	if err := st.PutTemplate(ctx, t); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "template %s answers to: %s\n", t.Name, strings.Join(append([]string{t.Name}, t.Aliases...), ", "))
	return err
}

// builderConfig is where builds are beside the images.
func builderConfig(imageDir string) template.Config {
	return template.Config{Dir: filepath.Join(imageDir, "builds")}
}

func newBuilder(dir string, log *slog.Logger) *template.Builder {
	return template.New(builderConfig(dir), rootfs.New(rootfs.Config{Dir: dir}), log)
}

// registerBuilt makes templates that come with hutch known to a new database, if their
// images are in the store already.
func registerBuilt(ctx context.Context, st store.Templates, imageDir string, log *slog.Logger) error {
	for _, name := range template.Builtins() {
		if _, err := st.Template(ctx, name); !errors.Is(err, hutch.ErrNotFound) {
			if err != nil {
				return err
			}
			continue
		}
		r, err := template.Builtin(name)
		if err != nil {
			return err
		}
		res, err := newBuilder(imageDir, log).Lookup(r)
		if err != nil {
			log.Info("template is not built yet", "template", name, "mend", "hutch template build "+name)
			continue
		}
		if err := st.PutTemplate(ctx, res.Template()); err != nil {
			return err
		}
	}
	return nil
}
