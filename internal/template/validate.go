package template

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"hutch.dev/hutch"

	"hutch.dev/hutch/internal/x/pattern"
)

// What names look like. Debian's policy manual defines packages (5.6.1); accounts are
// what useradd takes by default.
var (
	nameRE    = pattern.New(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
	suiteRE   = pattern.New(`^[a-z][a-z0-9.-]{0,31}$`)
	packageRE = pattern.New(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?$`)
	accountRE = pattern.New(`^[a-z_][a-z0-9_-]{0,30}$`)
	// requirementRE is the part of PEP 508 that needs no index of its own.
	requirementRE = pattern.New(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?(\[[A-Za-z0-9._,-]{1,100}\])?((===?|~=|!=|<=?|>=?)[A-Za-z0-9.*+!_-]{1,64}(,(===?|~=|!=|<=?|>=?)[A-Za-z0-9.*+!_-]{1,64}){0,7})?$`)
	envRE         = pattern.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Limits of a recipe. Those of a sandbox's size are what any isolator could be asked
// for; what a node grants is for admission to say.
const (
	maxItems   = 1000 // of any list
	maxAliases = 20
	maxUID     = 60000
	minUID     = 1000 // below are the system's accounts
	maxCPU     = 256
	maxMB      = 16 << 20 // 16 TiB
	minMemMB   = 64       // less starts no guest agent and a shell
	maxPids    = 1 << 20
	maxString  = 64 << 10
)

// Validate says what is wrong with a recipe: a hutch.ErrBadRequest naming the field.
func (r *Recipe) Validate() error {
	if !nameRE.MatchString(r.Name) {
		return hutch.FieldErrorf("name", "%q is no template name (want 1 to 63 of a-z 0-9 - _ ., a letter or digit at the ends)", r.Name)
	}
	if r.Suite != "" && !suiteRE.MatchString(r.Suite) {
		return hutch.FieldErrorf("suite", "%q is no suite", r.Suite)
	}
	if r.From != "" && !nameRE.MatchString(r.From) {
		return hutch.FieldErrorf("from", "%q is no name of a recipe", r.From)
	}
	for _, check := range []func() error{r.checkAliases, r.checkPackages, r.checkPip, r.checkUsers, r.checkPaths, r.checkEnv, r.checkCommands, r.checkProcess, r.checkResources} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Recipe) checkPackages() error {
	if len(r.Packages) > maxItems {
		return hutch.FieldErrorf("packages", "more than %d", maxItems)
	}
	for i, p := range r.Packages {
		if !packageRE.MatchString(p) {
			return hutch.FieldErrorf(fmt.Sprintf("packages[%d]", i), "%q is no package name", p)
		}
	}
	for name, list := range map[string][]string{"exclude": r.Exclude, "keep": r.Keep} {
		if len(list) > maxItems {
			return hutch.FieldErrorf(name, "more than %d", maxItems)
		}
		for i, glob := range list {
			if !strings.HasPrefix(glob, "/") || strings.ContainsAny(glob, " \t\n\x00") || len(glob) > 4096 {
				return hutch.FieldErrorf(fmt.Sprintf("%s[%d]", name, i), "%q is no pattern of absolute paths", glob)
			}
		}
	}
	return nil
}

// checkPip takes requirements of an index by name, version and extras: no option, file
// or address, which would be taken from elsewhere.
func (r *Recipe) checkPip() error {
	if len(r.Pip) > maxItems {
		return hutch.FieldErrorf("pip", "more than %d", maxItems)
	}
	for i, req := range r.Pip {
		if !requirementRE.MatchString(req) {
			return hutch.FieldErrorf(fmt.Sprintf("pip[%d]", i), "%q is no requirement (want name, name==1.2 or name>=1,<2)", req)
		}
	}
	if len(r.Pip) > 0 && r.From == "" && !slices.Contains(r.Packages, "python3-pip") {
		return hutch.FieldErrorf("pip", "package python3-pip is not in the recipe")
	}
	return nil
}

func (r *Recipe) checkAliases() error {
	if len(r.Aliases) > maxAliases {
		return hutch.FieldErrorf("aliases", "more than %d", maxAliases)
	}
	seen := map[string]bool{r.Name: true}
	for i, a := range r.Aliases {
		if err := CheckAlias(a); err != nil || seen[a] {
			return hutch.FieldErrorf(fmt.Sprintf("aliases[%d]", i), "%q is no name, or is there already", a)
		}
		seen[a] = true
	}
	return nil
}

// CheckAlias refuses what cannot be a further name of a template.
func CheckAlias(alias string) error {
	if !nameRE.MatchString(alias) {
		return hutch.FieldErrorf("alias", "%q is no alias (want 1 to 63 of a-z 0-9 - _ . with a letter or digit at the ends)", alias)
	}
	return nil
}

func (r *Recipe) checkUsers() error {
	if len(r.Users) > maxItems {
		return hutch.FieldErrorf("users", "more than %d", maxItems)
	}
	names, uids := map[string]bool{"root": true}, map[int]bool{}
	for i, u := range r.Users {
		field := fmt.Sprintf("users[%d]", i)
		switch {
		case !accountRE.MatchString(u.Name):
			return hutch.FieldErrorf(field+".name", "%q is no account name", u.Name)
		case names[u.Name]:
			return hutch.FieldErrorf(field+".name", "%q is there already", u.Name)
		case u.UID < minUID || u.UID > maxUID:
			return hutch.FieldErrorf(field+".uid", "%d is not in %d to %d", u.UID, minUID, maxUID)
		case uids[u.UID]:
			return hutch.FieldErrorf(field+".uid", "%d is taken already", u.UID)
		case !plainPath(u.Shell):
			return hutch.FieldErrorf(field+".shell", "%q is no absolute path", u.Shell)
		case u.Sudo && r.From == "" && !slices.Contains(r.Packages, "sudo"):
			return hutch.FieldErrorf(field+".sudo", "package sudo is not in the recipe")
		}
		for _, g := range u.Groups {
			if !accountRE.MatchString(g) {
				return hutch.FieldErrorf(field+".groups", "%q is no group name", g)
			}
		}
		names[u.Name], uids[u.UID] = true, true
	}
	return nil
}

// checkPaths checks directories and files.
func (r *Recipe) checkPaths() error {
	if len(r.Directories)+len(r.Files) > maxItems {
		return hutch.FieldErrorf("files", "more than %d files and directories", maxItems)
	}
	seen := map[string]bool{}
	one := func(field, p, owner string) error {
		if !plainPath(p) || p == "/" {
			return hutch.FieldErrorf(field+".path", "%q is no clean absolute path", p)
		}
		if seen[p] {
			return hutch.FieldErrorf(field+".path", "%q is there already", p)
		}
		seen[p] = true
		if owner != "" && owner != "root" && r.From == "" && r.user(owner) == nil {
			return hutch.FieldErrorf(field+".owner", "%q is no user of the recipe", owner)
		}
		return nil
	}
	for i, d := range r.Directories {
		if err := one(fmt.Sprintf("directories[%d]", i), d.Path, d.Owner); err != nil {
			return err
		}
	}
	for i, f := range r.Files {
		if err := one(fmt.Sprintf("files[%d]", i), f.Path, f.Owner); err != nil {
			return err
		}
	}
	return nil
}

func (r *Recipe) checkEnv() error {
	if len(r.Env) > maxItems {
		return hutch.FieldErrorf("env", "more than %d", maxItems)
	}
	for name, value := range r.Env {
		if !envRE.MatchString(name) {
			return hutch.FieldErrorf("env", "%q is no name of a variable", name)
		}
		// /etc/environment has no way to write these.
		if strings.ContainsAny(value, "\n\r\x00\"#") || len(value) > maxString {
			return hutch.FieldErrorf("env", "the value of %s has a line break, a quote or a #, or is too long", name)
		}
	}
	return nil
}

func (r *Recipe) checkCommands() error {
	if len(r.Commands) > maxItems {
		return hutch.FieldErrorf("commands", "more than %d", maxItems)
	}
	for i, c := range r.Commands {
		field := fmt.Sprintf("commands[%d]", i)
		switch {
		case c.Name == "" || len(c.Name) > 100 || strings.ContainsAny(c.Name, "\n\r\t\x00"):
			return hutch.FieldErrorf(field+".name", "a command needs a name of up to 100 characters on one line")
		case strings.TrimSpace(c.Run) == "" || strings.Contains(c.Run, "\x00") || len(c.Run) > maxString:
			return hutch.FieldErrorf(field+".run", "want a script of up to %d bytes", maxString)
		case c.Timeout < 0 || c.Timeout > MaxCommandTimeout:
			return hutch.FieldErrorf(field+".timeout", "%s is not in 0 to %s", c.Timeout, MaxCommandTimeout)
		}
	}
	return nil
}

func (r *Recipe) checkProcess() error {
	if r.User != "" && r.User != "root" && r.From == "" && r.user(r.User) == nil {
		return hutch.FieldErrorf("user", "%q is no user of the recipe", r.User)
	}
	if r.Cwd != "" && !plainPath(r.Cwd) {
		return hutch.FieldErrorf("cwd", "%q is no clean absolute path", r.Cwd)
	}
	return nil
}

func (r *Recipe) checkResources() error {
	z := r.Resources
	if r.From != "" { // what is left out is that recipe's
		d := DefaultResources
		z.CPU, z.MemoryMB, z.DiskMB, z.DiskTier = cmp.Or(z.CPU, d.CPU), cmp.Or(z.MemoryMB, d.MemoryMB), cmp.Or(z.DiskMB, d.DiskMB), cmp.Or(z.DiskTier, d.DiskTier)
	}
	switch {
	case !(z.CPU >= 0.01 && z.CPU <= maxCPU): // written so that NaN fails
		return hutch.FieldErrorf("resources.cpu", "%v is not in 0.01 to %d", z.CPU, maxCPU)
	case z.MemoryMB < minMemMB || z.MemoryMB > maxMB:
		return hutch.FieldErrorf("resources.memory_mb", "%d is not in %d to %d", z.MemoryMB, minMemMB, maxMB)
	case z.DiskMB < 1 || z.DiskMB > maxMB:
		return hutch.FieldErrorf("resources.disk_mb", "%d is not in 1 to %d", z.DiskMB, maxMB)
	case z.DiskTier != hutch.TierDisk && z.DiskTier != hutch.TierMemory:
		return hutch.FieldErrorf("resources.disk_tier", "%q is neither disk nor memory", z.DiskTier)
	case z.Pids != 0 && (z.Pids < 16 || z.Pids > maxPids):
		return hutch.FieldErrorf("resources.pids", "%d is not in 16 to %d", z.Pids, maxPids)
	}
	return nil
}

// user returns the recipe's user of that name, nil if there is none.
func (r *Recipe) user(name string) *User {
	for i := range r.Users {
		if r.Users[i].Name == name {
			return &r.Users[i]
		}
	}
	return nil
}

// plainPath reports whether p is absolute, clean and printable.
func plainPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && len(p) <= 4095 && !strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f })
}
