package template

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"hutch.dev/hutch"
)

// Recipe says what a template is made of. Its YAML form refuses fields it does not
// know; ParseRecipe returns it with every default filled in.
type Recipe struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
	// Aliases are further names that the template answers to.
	Aliases []string `yaml:"aliases" json:"-"`

	// From names a recipe that this one builds upon: the image starts as that one's, and
	// its variables, users and resources hold unless they are set here; empty = none.
	From string `yaml:"from" json:",omitempty"`

	// Suite is the Debian suite by codename; empty = that of the machine that builds.
	Suite    string   `yaml:"suite"`
	Packages []string `yaml:"packages"` // beyond the essential ones and apt; recommended packages are not added
	// Exclude and Keep are dpkg's path-exclude and path-include: patterns of what is
	// not unpacked, here and in every later installation inside.
	Exclude []string `yaml:"exclude"`
	Keep    []string `yaml:"keep"`
	// Pip are requirements for the image's own pip, installed for everybody from the
	// package index that the machine's pip is set up for; wheels only, nothing is compiled.
	Pip []string `yaml:"pip" json:",omitempty"`

	Users       []User            `yaml:"users"`
	Directories []Directory       `yaml:"directories"`
	Files       []File            `yaml:"files"`
	Env         map[string]string `yaml:"env"` // of every process; logins and sudo keep it
	Commands    []Command         `yaml:"commands"`

	// User and Cwd are what processes start with unless told otherwise; see
	// [hutch.ProcessDefaults].
	User      string    `yaml:"user"`
	Cwd       string    `yaml:"cwd"`
	Resources Resources `yaml:"resources"`
}

// User is an account in the image. It has a group of its own name and number, a home
// directory, and no password.
type User struct {
	Name   string   `yaml:"name"`
	UID    int      `yaml:"uid"`
	Shell  string   `yaml:"shell"`  // empty = /bin/sh
	Groups []string `yaml:"groups"` // further groups; they must exist
	Sudo   bool     `yaml:"sudo"`   // may become anyone without a password
}

// Directory is made with its parents.
type Directory struct {
	Path  string `yaml:"path"`
	Mode  Mode   `yaml:"mode"`  // 0 = 0755
	Owner string `yaml:"owner"` // a user of the recipe; empty = root
}

// File is written before the commands run.
type File struct {
	Path    string `yaml:"path"`
	Content string `yaml:"content"`
	Mode    Mode   `yaml:"mode"`  // 0 = 0644
	Owner   string `yaml:"owner"` // a user of the recipe; empty = root
}

// Command runs in the image by /bin/sh -e, as root, with the network of the machine
// that builds.
type Command struct {
	Name    string        `yaml:"name"`
	Run     string        `yaml:"run"`
	Timeout time.Duration `yaml:"timeout"` // 0 = DefaultCommandTimeout
}

// DefaultCommandTimeout is what a command may take, and MaxCommandTimeout the most
// that a recipe can give it.
const (
	DefaultCommandTimeout = 30 * time.Minute
	MaxCommandTimeout     = 6 * time.Hour
)

// Resources is the size of a sandbox made from the template unless asked otherwise.
type Resources struct {
	CPU      float64        `yaml:"cpu"` // CPUs; thousandths count
	MemoryMB int            `yaml:"memory_mb"`
	DiskMB   int            `yaml:"disk_mb"`
	DiskTier hutch.DiskTier `yaml:"disk_tier"`
	// Pids is the most processes and threads at once; 0 = as many as the memory of each
	// sandbox bears, which the control plane works out.
	Pids int `yaml:"pids"`
}

// DefaultResources is what a recipe that says nothing gets: enough to install
// packages and compile, small enough for a dozen on a small machine. Pids is not among
// them: a number fit for this memory would be too many for a sandbox that asks for less.
var DefaultResources = Resources{CPU: 1, MemoryMB: 1024, DiskMB: 10240, DiskTier: hutch.TierDisk}

// Mode is a file mode, in YAML as octal digits, quoted or not.
type Mode fs.FileMode

// UnmarshalText reads octal digits: "0755", "1777".
func (m *Mode) UnmarshalText(text []byte) error {
	var v uint32
	if len(text) < 3 || len(text) > 5 {
		return fmt.Errorf("mode %q: want 3 to 5 octal digits", text)
	}
	for _, c := range text {
		if c < '0' || c > '7' {
			return fmt.Errorf("mode %q: want octal digits", text)
		}
		v = v<<3 | uint32(c-'0')
	}
	if v > 0o7777 {
		return fmt.Errorf("mode %q: larger than 07777", text)
	}
	*m = Mode(v)
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%04o", uint32(m)), nil }

// fileMode turns the Unix bits into Go's.
func (m Mode) fileMode() fs.FileMode {
	mode := fs.FileMode(m) & fs.ModePerm
	for bit, flag := range map[Mode]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&bit != 0 {
			mode |= flag
		}
	}
	return mode
}

//go:embed recipes/*.yaml
var recipeFiles embed.FS

// Builtin returns the recipe of that name that comes with Hutch, hutch.ErrNotFound if
// there is none.
func Builtin(name string) (Recipe, error) {
	data, err := recipeFiles.ReadFile("recipes/" + name + ".yaml")
	if err != nil {
		return Recipe{}, hutch.Errorf(hutch.CodeNotFound, "no recipe %q comes with Hutch (there is: %s)", name, strings.Join(Builtins(), ", "))
	}
	return ParseRecipe(data)
}

// Builtins returns the names of the recipes that come with Hutch.
func Builtins() []string {
	entries, err := recipeFiles.ReadDir("recipes")
	if err != nil {
		panic(err) // embedded: cannot be
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// maxRecipe bounds a recipe's YAML, in bytes: files can be in it, images cannot.
const maxRecipe = 4 << 20

// ParseRecipe reads a recipe. What is wrong with it is hutch.ErrBadRequest, with the
// line for syntax and unknown fields, with the field for values.
func ParseRecipe(data []byte) (Recipe, error) {
	if len(data) > maxRecipe {
		return Recipe{}, hutch.Errorf(hutch.CodeTooLarge, "a recipe may have %d bytes", maxRecipe)
	}
	r, err := decodeRecipe(data)
	if err != nil {
		return Recipe{}, err
	}
	r.normalise()
	return r, r.Validate()
}

// decodeRecipe reads one YAML document.
func decodeRecipe(data []byte) (Recipe, error) {
	var r Recipe
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&r); err != nil {
		if errors.Is(err, io.EOF) {
			return Recipe{}, hutch.Errorf(hutch.CodeBadRequest, "the recipe is empty")
		}
		text := strings.TrimPrefix(err.Error(), "yaml: ")
		if e := (*yaml.TypeError)(nil); errors.As(err, &e) {
			text = strings.Join(e.Errors, "; ")
		}
		return Recipe{}, hutch.Errorf(hutch.CodeBadRequest, "read recipe: %s", text)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Recipe{}, hutch.Errorf(hutch.CodeBadRequest, "a recipe is one YAML document")
	}
	return r, nil
}

// normalise fills in defaults and orders what has no order, so that recipes that mean
// the same are equal.
func (r *Recipe) normalise() {
	slices.Sort(r.Packages)
	r.Packages = slices.Compact(r.Packages)
	slices.Sort(r.Pip)
	r.Pip = slices.Compact(r.Pip)
	for i := range r.Users {
		if r.Users[i].Shell == "" {
			r.Users[i].Shell = "/bin/sh"
		}
	}
	for i := range r.Directories {
		if r.Directories[i].Mode == 0 {
			r.Directories[i].Mode = 0o755
		}
	}
	for i := range r.Files {
		if r.Files[i].Mode == 0 {
			r.Files[i].Mode = 0o644
		}
	}
	for i := range r.Commands {
		if r.Commands[i].Timeout == 0 {
			r.Commands[i].Timeout = DefaultCommandTimeout
		}
	}
	if r.From != "" {
		return // what is not set is that recipe's
	}
	d, z := DefaultResources, &r.Resources
	z.CPU, z.MemoryMB, z.DiskMB = cmp.Or(z.CPU, d.CPU), cmp.Or(z.MemoryMB, d.MemoryMB), cmp.Or(z.DiskMB, d.DiskMB)
	z.DiskTier = cmp.Or(z.DiskTier, d.DiskTier)
}

// upon is the recipe of everything in the image of r, which builds upon base.
func (r Recipe) upon(base Recipe) Recipe {
	whole := r
	whole.From = ""
	whole.Suite = cmp.Or(r.Suite, base.Suite)
	join := func(a, b []string) []string {
		all := slices.Concat(a, b)
		slices.Sort(all)
		return slices.Compact(all)
	}
	whole.Packages, whole.Pip = join(base.Packages, r.Packages), join(base.Pip, r.Pip)
	whole.Exclude, whole.Keep = slices.Concat(base.Exclude, r.Exclude), slices.Concat(base.Keep, r.Keep)
	whole.Users = slices.Concat(base.Users, r.Users)
	whole.Env = maps.Clone(base.Env)
	if whole.Env == nil && r.Env != nil {
		whole.Env = map[string]string{}
	}
	maps.Copy(whole.Env, r.Env)
	whole.User, whole.Cwd = cmp.Or(r.User, base.User), cmp.Or(r.Cwd, base.Cwd)
	z, d := &whole.Resources, base.Resources
	z.CPU, z.MemoryMB, z.DiskMB = cmp.Or(z.CPU, d.CPU), cmp.Or(z.MemoryMB, d.MemoryMB), cmp.Or(z.DiskMB, d.DiskMB)
	z.DiskTier, z.Pids = cmp.Or(z.DiskTier, d.DiskTier), cmp.Or(z.Pids, d.Pids)
	return whole
}

// Hash names what the recipe puts into an image: two recipes of one hash make the same
// image from the same sources. Names, limits and what processes start with are not in
// it, for they are not in the image.
func (r Recipe) Hash() string {
	r.normalise()
	r.Name, r.Description, r.Suite, r.User, r.Cwd, r.Resources = "", "", "", "", "", Resources{}
	data, err := json.Marshal(r) // maps are marshalled in the order of their keys
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// template is what the recipe says of the template, without its build.
func (r Recipe) template() hutch.Template {
	return hutch.Template{
		Name: r.Name, Description: r.Description, Aliases: r.Aliases,
		Defaults: hutch.ProcessDefaults{User: r.User, Cwd: r.Cwd, Env: r.Env}, Resources: r.size(),
	}
}

// size is the recipe's resources in the vocabulary of sandboxes.
func (r Recipe) size() hutch.Resources {
	z := r.Resources
	return hutch.Resources{MilliCPU: int(z.CPU*1000 + 0.5), MemoryMB: z.MemoryMB, DiskMB: z.DiskMB, DiskTier: z.DiskTier, Pids: z.Pids}
}
