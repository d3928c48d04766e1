package main

import (
	"errors"
	"fmt"

	"hutch.dev/hutch"
)

// readProfiles takes over which profile the sandboxes of a project have.
func (c *serveConfig) readProfiles() error {
	c.control.ProjectProfiles = map[hutch.ProjectID]hutch.Profile{}
	for project, profile := range c.profiles {
		p := hutch.Profile(profile)
		switch {
		case project == "":
			return errors.New("--project-profile: name the project, as in " + string(hutch.DefaultProject) + "=" + string(hutch.ProfileLocked))
		case !p.Valid():
			return fmt.Errorf("--project-profile: that of %s must be %s or %s, not %q", project, hutch.ProfileRoot, hutch.ProfileLocked, profile)
		}
		c.control.ProjectProfiles[hutch.ProjectID(project)] = p
	}
	return nil
}
