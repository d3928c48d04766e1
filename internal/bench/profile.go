package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// profile begins a profile of this process's CPU in the directory s.Profiles, if there is
// one, and returns what ends it.
func (s Settings) profile() (stop func() error, err error) {
	if s.Profiles == "" {
		return func() error { return nil }, nil
	}
	f, err := s.profileFile("cpu")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("profile the CPU: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// heapProfile writes a profile of what is in this process's heap.
func (s Settings) heapProfile(name string) error {
	if s.Profiles == "" {
		return nil
	}
	f, err := s.profileFile(name)
	if err != nil {
		return err
	}
	if err := pprof.WriteHeapProfile(f); err != nil {
		return errors.Join(fmt.Errorf("profile the heap: %w", err), f.Close())
	}
	return f.Close()
}

func (s Settings) profileFile(name string) (*os.File, error) {
	f, err := os.Create(filepath.Join(s.Profiles, name+".pprof"))
	if err != nil {
		return nil, fmt.Errorf("make a profile: %w", err)
	}
	return f, nil
}
