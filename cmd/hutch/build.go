package main

import (
	"runtime"
	"runtime/debug"

	"hutch.dev/hutch/api"
)

// buildInfo is what this binary says of itself.
func buildInfo() api.BuildInfo {
	b := api.BuildInfo{Service: "hutch", Semver: buildVersion, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.time":
				b.BuildTime = s.Value
			}
		}
	}
	return b
}
