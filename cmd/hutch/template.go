package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/obs"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/store/sqlite"
	"hutch.dev/hutch/internal/template"
)

// newTemplateBuild is `hutch template build`. It works on this machine, beside a server
// that runs or before one does: the image goes into the store, the record into the data
// directory's database.
func newTemplateBuild() *cobra.Command {
	var cfg serveConfig
	var file string
	var force bool
	c := &cobra.Command{
		Use:   "build [NAME]",
		Short: "Build a template on this machine",
		Long: "Builds a template that comes with hutch, or one from a recipe file, and makes its\n" +
			"name point at the new image. What is built already is found, not built again.\n" +
			"Sandboxes that run keep the image they were made from.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := chooseRecipe(args, file)
			if err != nil {
				return err
			}
			return buildTemplate(cmd.Context(), cfg, r, force, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.dataDir, "data-dir", defaultDataDir(), "data directory of the server")
	f.StringVar(&cfg.cacheDir, "cache-dir", os.Getenv(rootfs.DirEnv), "where root images are kept (default: in the data directory)")
	f.StringVarP(&file, "file", "f", "", "recipe to build instead of one that comes with hutch")
	f.BoolVar(&force, "force", false, "build although the image is there")
	return c
}

func chooseRecipe(args []string, file string) (template.Recipe, error) {
	switch {
	case file != "" && len(args) > 0:
		return template.Recipe{}, errors.New("give a name or --file, not both")
	case file != "":
		data, err := os.ReadFile(file)
		if err != nil {
			return template.Recipe{}, err
		}
		return template.ParseRecipe(data)
	case len(args) == 1:
		return template.Builtin(args[0])
	}
	return template.Recipe{}, fmt.Errorf("name a template (%v) or give --file", template.Builtins())
}

func buildTemplate(ctx context.Context, cfg serveConfig, r template.Recipe, force bool, out, errOut io.Writer) error {
	log := obs.NewLogger(errOut, false, slog.LevelError)
	show := newProgress(errOut, r.Name)
	res, err := newBuilder(cfg.imageDir(), log).Build(ctx, r, template.Options{Force: force, Progress: show.step})
	show.done()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.dataDir, 0o700); err != nil {
		return err
	}
	st, err := sqlite.Open(ctx, filepath.Join(cfg.dataDir, dbFile))
	if err != nil {
		return err
	}
	if err := errors.Join(st.PutTemplate(ctx, res.Template()), st.Close()); err != nil {
		return err
	}
	how := fmt.Sprintf("built in %s", res.Took.Round(time.Second))
	if res.Cached {
		how = "was built already"
	}
	_, err = fmt.Fprintf(out, "template %s %s: %s, %d MiB\n", r.Name, how, res.Image.Digest, res.Image.SizeBytes>>20)
	return err
}

func newBuilder(dir string, log *slog.Logger) *template.Builder {
	images := rootfs.New(rootfs.Config{Dir: dir})
	return template.New(template.Config{Dir: filepath.Join(dir, "builds")}, images, log)
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
