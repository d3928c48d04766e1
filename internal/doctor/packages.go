package doctor

import (
	"errors"
	"strings"

	"hutch.dev/hutch/internal/x/aptsource"
)

// programs are what building templates needs, with their Debian packages.
func (e *Env) programs() []Check {
	var checks []Check
	for _, p := range []struct{ program, pkg, use string }{
		{"mmdebstrap", "mmdebstrap", "unpacks packages into a template"},
		{"mkfs.erofs", "erofs-utils", "writes root images"},
	} {
		path, err := e.LookPath(p.program)
		if err != nil {
			checks = append(checks, ok(p.pkg, "%s, which %s, is not installed", p.program, p.use).fail("run: apt-get install -y %s", p.pkg))
			continue
		}
		checks = append(checks, ok(p.pkg, "%s", path))
	}
	return checks
}

// aptSources: the base template is built from the packages of one suite.
func (e *Env) aptSources() Check {
	const name = "apt sources"
	host, err := aptsource.ReadDistro(e.Root)
	if err != nil {
		return ok(name, "cannot tell the distribution: no /etc/os-release").
			fail("templates are built from Debian's packages; use Debian 12 or newer, or its like (cat /etc/os-release)")
	}
	suite := e.Suite
	if suite == "" {
		suite = host.Codename
	}
	if suite == "" {
		return ok(name, "/etc/os-release has no VERSION_CODENAME").
			fail("give the recipe a suite (suite: bookworm), or use a machine whose distribution has names (grep CODENAME /etc/os-release)")
	}
	sources, readErr := aptsource.Read(e.Root)
	_, err = aptsource.Select(sources, aptsource.Query{Suite: suite, Arch: e.Arch, Distro: host.ID, Release: aptsource.Cached(e.Root)})
	var missing *aptsource.NotFoundError
	if errors.As(err, &missing) {
		c := ok(name, "none carries suite %s", suite)
		if readErr != nil {
			c.Detail += "; " + firstLine(readErr)
		}
		return c.fail("%v", err)
	}
	if err != nil {
		return ok(name, "%v", err).fail("see what apt itself says: apt-get update")
	}
	if readErr != nil {
		return ok(name, "suite %s is there, but: %s", suite, firstLine(readErr)).warn("see what apt itself says: apt-get update")
	}
	return ok(name, "suite %s", suite)
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
