package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/obs"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/template"
	"hutch.dev/hutch/internal/template/ociimage"
)

// buildFlags is what `hutch template build` is told.
type buildFlags struct {
	serve serveConfig // its directories
	force bool

	file, recipes         string // a recipe, and where further ones are
	oci, docker, image    string // container images
	name, tag             string
	aliases               []string
	user, ca              string
	passwordStdin, noTLS  bool
	cpu                   float64
	memory, disk, maxSize int
	profile               hutch.Profile
}

// newTemplateBuild is `hutch template build`. It works on this machine, beside a server
// that runs or before one does: the image goes into the store, the record into the data
// directory's database.
func newTemplateBuild() *cobra.Command {
	var b buildFlags
	c := &cobra.Command{
		Use:   "build [RECIPE]",
		Short: "Build a template on this machine",
		Long: "Builds a template from a recipe that comes with hutch, from a recipe file, or from a\n" +
			"container image, and makes its name point at the new image. What is built already is\n" +
			"found, not built again. Sandboxes that run keep the image they were made from.",
		Example: "  hutch template build base\n" +
			"  hutch template build --file my.yaml\n" +
			"  hutch template build --image registry.example/app:1 --name app\n" +
			"  hutch template build --docker-archive app.tar --name app --memory 512",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := b.check(cmd, args); err != nil {
				return err
			}
			return b.run(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := c.Flags()
	templateDirs(c, &b.serve)
	f.StringVarP(&b.file, "file", "f", "", "recipe file to build from")
	f.StringVar(&b.recipes, "recipes", "", "directory of further recipes, NAME.yaml each")
	f.StringVar(&b.oci, "oci", "", "OCI layout to build from, a directory or a tar archive")
	f.StringVar(&b.docker, "docker-archive", "", "archive of docker save to build from")
	f.StringVar(&b.image, "image", "", "image in a registry to build from, HOST/PATH:TAG or HOST/PATH@sha256:...")
	f.StringVar(&b.name, "name", "", "name of the template (default: the recipe's; needed for an image)")
	f.StringVar(&b.tag, "tag", "", "which image of an archive that has several")
	f.StringSliceVar(&b.aliases, "alias", nil, "another name that it answers to; may be repeated")
	f.StringVar(&b.user, "username", "", "user name at the registry (default: what docker login left on this machine)")
	f.BoolVar(&b.passwordStdin, "password-stdin", false, "read the password for the registry from the first line of stdin")
	f.StringVar(&b.ca, "ca", "", "file of certificates to trust at the registry besides the machine's")
	f.BoolVar(&b.noTLS, "insecure", false, "accept a registry without TLS, or with any certificate")
	f.Float64Var(&b.cpu, "cpu", 0, "CPUs of a sandbox made from it, unless asked otherwise")
	f.IntVar(&b.memory, "memory", 0, "memory of a sandbox made from it, in MiB")
	f.IntVar(&b.disk, "disk", 0, "disk of a sandbox made from it, in MiB")
	f.StringVar((*string)(&b.profile), "profile", "", "profile of a sandbox made from it, unless asked otherwise: root or locked (default: as it was)")
	f.IntVar(&b.maxSize, "max-image-size", 16*1024, "most that a container image may unpack to, in MiB")
	f.BoolVar(&b.force, "force", false, "build although the image is there")
	return c
}

// check refuses flags that would have no effect.
func (b *buildFlags) check(c *cobra.Command, args []string) error {
	container := b.oci != "" || b.docker != "" || b.image != ""
	switch {
	case b.recipes != "" && container:
		return errors.New("--recipes is about recipes: a container image is built without any")
	case c.Flags().Changed("max-image-size") && !container && (b.file != "" || len(args) > 0):
		return errors.New("--max-image-size is about a container image: it needs --oci, --docker-archive or --image")
	case b.maxSize < 1:
		return errors.New("--max-image-size must be at least 1, in MiB")
	}
	return nil
}

// run builds, and records what was built.
func (b *buildFlags) run(ctx context.Context, args []string, stdin io.Reader, out, errOut io.Writer) error {
	if b.profile != "" && !b.profile.Valid() {
		return fmt.Errorf("--profile must be %s or %s, not %q", hutch.ProfileRoot, hutch.ProfileLocked, b.profile)
	}
	container, recipe, err := b.source(args, stdin)
	if err != nil {
		return err
	}
	log := obs.NewLogger(errOut, false, slog.LevelError)
	builder := b.builder(log)
	if container == nil && recipe == nil {
		named, err := builder.Recipe(args[0])
		if err != nil {
			return err
		}
		recipe = &named
	}
	name := b.name
	if container == nil {
		name = cmp.Or(b.name, recipe.Name)
	}
	show := newProgress(errOut, name)
	o := template.Options{Force: b.force, Progress: show.step}
	var res template.Result
	if container != nil {
		res, err = builder.BuildImage(ctx, *container, o)
	} else {
		r := recipe.As(name).Sized(b.size())
		r.Aliases = append(r.Aliases, b.aliases...)
		res, err = builder.Build(ctx, r, o)
	}
	show.done()
	if err != nil {
		return err
	}
	if err := b.serve.withStore(ctx, func(st templateStore) error { return b.record(ctx, st, res.Template()) }); err != nil {
		return err
	}
	how := fmt.Sprintf("built in %s", res.Took.Round(time.Second))
	if res.Cached {
		how = "was built already"
	}
	_, err = fmt.Fprintf(out, "template %s %s: %s, %d MiB, from %s\n", res.Name, how, res.Image.Digest, res.Image.SizeBytes>>20, res.Source)
	return err
}

// record makes what was built known. A template that exists keeps the aliases it has been
// given meanwhile, and its profile unless another was asked for.
func (b *buildFlags) record(ctx context.Context, st templateStore, t hutch.Template) error {
	t.Profile = b.profile
	old, err := st.Template(ctx, t.Name)
	switch {
	case err == nil && old.Name == t.Name:
		t.KeepAliases(old)
		t.Profile = cmp.Or(t.Profile, old.Profile)
	case err != nil && !errors.Is(err, hutch.ErrNotFound):
		return err
	}
	return st.PutTemplate(ctx, t)
}

// source is what to build from: a container image, a recipe, or, both nil, the recipe
// named in args.
func (b *buildFlags) source(args []string, stdin io.Reader) (*template.Container, *template.Recipe, error) {
	src := ociimage.Source{Ref: b.image, Archive: cmp.Or(b.oci, b.docker), Tag: b.tag, Username: b.user, CAFile: b.ca, Insecure: b.noTLS, MachineLogin: true}
	given := len(args)
	for _, s := range []string{b.file, b.oci, b.docker, b.image} {
		if s != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, nil, fmt.Errorf("give one thing to build from: a recipe's name (%s), --file, --oci, --docker-archive or --image", strings.Join(template.Builtins(), ", "))
	case b.image == "" && (b.user != "" || b.passwordStdin || b.ca != "" || b.noTLS):
		return nil, nil, errors.New("--username, --password-stdin, --ca and --insecure are about a registry: they need --image")
	case b.passwordStdin != (b.user != ""):
		return nil, nil, errors.New("--username and --password-stdin need each other")
	case b.tag != "" && src.Archive == "":
		return nil, nil, errors.New("--tag is about an archive: it needs --oci or --docker-archive")
	}
	if b.file != "" {
		data, err := os.ReadFile(b.file)
		if err != nil {
			return nil, nil, err
		}
		r, err := template.ParseRecipe(data)
		return nil, &r, err
	}
	if len(args) == 1 {
		return nil, nil, nil
	}
	if b.name == "" {
		return nil, nil, errors.New("give the template a --name")
	}
	switch {
	case b.oci != "":
		src.Kind = ociimage.KindOCI
	case b.docker != "":
		src.Kind = ociimage.KindDocker
	case b.passwordStdin:
		line, err := bufio.NewReader(stdin).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, fmt.Errorf("read the password from stdin: %w", err)
		}
		if src.Password = strings.TrimRight(line, "\r\n"); src.Password == "" {
			return nil, nil, errors.New("there is no password on stdin")
		}
	}
	return &template.Container{Name: b.name, Aliases: b.aliases, Source: src, Resources: b.size()}, nil, nil
}

func (b *buildFlags) size() template.Resources {
	return template.Resources{CPU: b.cpu, MemoryMB: b.memory, DiskMB: b.disk}
}

func (b *buildFlags) builder(log *slog.Logger) *template.Builder {
	cfg := builderConfig(b.serve.imageDir())
	cfg.Recipes = b.recipes
	cfg.MaxImageBytes = int64(min(b.maxSize, math.MaxInt32)) << 20
	return template.New(cfg, rootfs.New(rootfs.Config{Dir: b.serve.imageDir()}), log)
}
