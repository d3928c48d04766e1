package aptsource

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Distro is what a machine's /etc/os-release says it runs.
type Distro struct {
	ID       string // "debian"
	Codename string // "bookworm": the suite of its packages; empty if it has no name
}

// ReadDistro reads etc/os-release below root; see os-release(5).
func ReadDistro(root string) (Distro, error) {
	data, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		return Distro{}, fmt.Errorf("find out the machine's distribution: %w", err)
	}
	var d Distro
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		value = strings.Trim(value, `"'`)
		switch name {
		case "ID":
			d.ID = value
		case "VERSION_CODENAME":
			d.Codename = value
		}
	}
	return d, nil
}
