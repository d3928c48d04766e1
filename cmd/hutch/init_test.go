package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hutch.dev/hutch/internal/egress/presets"
)

// What init writes is what serve reads, and it takes nobody's file away.
func TestInitWritesWhatServeReads(t *testing.T) {
	root, path := t.TempDir(), filepath.Join(t.TempDir(), "data", egressFileName)
	conf := filepath.Join(root, "etc/pip.conf")
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, []byte("[global]\nindex-url = https://pypi.example.com/simple\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m := presets.Machine{Root: root, Home: "/home/dev", Getenv: func(string) string { return "" }}
	var out bytes.Buffer
	if err := initEgress(t.Context(), m, path, false, &out); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "pypi.example.com, trusted") {
		t.Errorf("it says %s", s)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := parseEgress(b)
	if err != nil || cfg.Check() != nil || cfg.Env.Presets["pypi"].Hosts[0].Domain != "pypi.example.com" || cfg.Projects["*"].Default == nil {
		t.Errorf("serve reads %+v, %v", cfg, err)
	}
	if err := initEgress(t.Context(), presets.Machine{Root: t.TempDir(), Home: "/", Getenv: m.Getenv}, path, false, &out); err == nil {
		t.Error("a file that was there was replaced")
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, b) {
		t.Errorf("the file is now %s", now)
	}
	if err := initEgress(t.Context(), presets.Machine{Root: t.TempDir(), Home: "/", Getenv: m.Getenv}, path, true, &out); err != nil {
		t.Fatal(err)
	}
	if now, _ := os.ReadFile(path); bytes.Contains(now, []byte("pypi")) {
		t.Errorf("the file is now %s", now)
	}
}
