package control

import (
	"errors"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func testControl() *Control { return &Control{cfg: Config{}.withDefaults()} }

func ptr[T any](v T) *T { return &v }

func TestPlanFillsFromTemplateThenDefaults(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	tpl := hutch.Template{Name: "base", Image: "sha256:1", BuildID: "b1", Resources: hutch.Resources{MemoryMB: 4096}}
	sb, err := testControl().plan(hutch.CreateSandbox{ID: "i1", Resources: hutch.Resources{MilliCPU: 1500}}, tpl, now)
	if err != nil {
		t.Fatal(err)
	}
	want := hutch.Resources{MilliCPU: 1500, MemoryMB: 4096, DiskMB: fallbackResources.DiskMB, DiskTier: hutch.TierDisk, Pids: 1024}
	if sb.Resources != want {
		t.Errorf("resources: got %+v, want %+v", sb.Resources, want)
	}
	if sb.Resources.CPUs() != 2 {
		t.Errorf("1.5 CPUs show as %d inside, want 2", sb.Resources.CPUs())
	}
	if sb.Hostname != "i1" || !sb.ExpiresAt.Equal(now.Add(time.Hour)) || sb.State != hutch.StateNew {
		t.Errorf("got hostname %q, expires %v, state %q", sb.Hostname, sb.ExpiresAt, sb.State)
	}
}

func TestPlanTakesTheProfile(t *testing.T) {
	const root, locked = hutch.ProfileRoot, hutch.ProfileLocked
	control := testControl()
	control.cfg.ProjectProfiles = map[hutch.ProjectID]hutch.Profile{"closed": locked, "open": root}
	for _, c := range []struct {
		project             hutch.ProjectID
		own, template, want hutch.Profile
	}{
		{"", "", "", root},
		{"", "", locked, locked},
		{"", locked, "", locked},
		{"", root, locked, root},
		{"closed", "", "", locked},
		{"closed", "", root, root},
		{"closed", root, "", root},
		{"open", "", "", root},
		{"open", "", locked, locked},
		{"another", "", "", root},
	} {
		sb, err := control.plan(hutch.CreateSandbox{ID: "i1", Project: c.project, Profile: c.own}, hutch.Template{Profile: c.template}, time.Unix(1_000_000, 0))
		if err != nil || sb.Profile != c.want {
			t.Errorf("%+v: %q, %v", c, sb.Profile, err)
		}
	}
}

func TestPlanRefusesByField(t *testing.T) {
	long := strings.Repeat("x", 200)
	many := map[string]string{}
	for i := range maxMetadata + 1 {
		many[strings.Repeat("k", i+1)] = ""
	}
	for name, c := range map[string]struct {
		req   hutch.CreateSandbox
		field string
	}{
		"no memory":             {hutch.CreateSandbox{Resources: hutch.Resources{MemoryMB: 1}}, "memory_mb"},
		"too much memory":       {hutch.CreateSandbox{Resources: hutch.Resources{MemoryMB: 1 << 30}}, "memory_mb"},
		"negative cpu":          {hutch.CreateSandbox{Resources: hutch.Resources{MilliCPU: -1}}, "cpu"},
		"no disk":               {hutch.CreateSandbox{Resources: hutch.Resources{DiskMB: 1}}, "disk_mb"},
		"unknown profile":       {hutch.CreateSandbox{Profile: "half"}, "profile"},
		"unknown tier":          {hutch.CreateSandbox{Resources: hutch.Resources{DiskTier: "tape"}}, "disk_tier"},
		"memory tier too large": {hutch.CreateSandbox{Resources: hutch.Resources{DiskTier: hutch.TierMemory, MemoryMB: 1024, DiskMB: 1024}}, "disk_mb"},
		"few pids":              {hutch.CreateSandbox{Resources: hutch.Resources{Pids: 1}}, "pids"},
		"negative ttl":          {hutch.CreateSandbox{TTL: ptr(-time.Second)}, "ttl_seconds"},
		"ttl past the maximum":  {hutch.CreateSandbox{TTL: ptr(25 * time.Hour)}, "ttl_seconds"},
		"short idle timeout":    {hutch.CreateSandbox{IdleTimeout: time.Millisecond}, "idle_timeout_seconds"},
		"long hostname":         {hutch.CreateSandbox{Hostname: long}, "hostname"},
		"unicode hostname":      {hutch.CreateSandbox{Hostname: "ünï"}, "hostname"},
		"hyphen first":          {hutch.CreateSandbox{Hostname: "-a"}, "hostname"},
		"env name with =":       {hutch.CreateSandbox{Env: map[string]string{"A=B": "x"}}, "env"},
		"env name empty":        {hutch.CreateSandbox{Env: map[string]string{"": "x"}}, "env"},
		"env zero byte":         {hutch.CreateSandbox{Env: map[string]string{"A": "x\x00"}}, "env"},
		"metadata too many":     {hutch.CreateSandbox{Metadata: many}, "metadata"},
		"metadata too long":     {hutch.CreateSandbox{Metadata: map[string]string{"a": strings.Repeat("x", maxPairLen)}}, "metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			c.req.ID = "i1"
			_, err := testControl().plan(c.req, hutch.Template{}, time.Now())
			var e *hutch.Error
			if !errors.As(err, &e) || e.Code != hutch.CodeBadRequest || e.Field != c.field {
				t.Errorf("got %v, want a bad_request about %s", err, c.field)
			}
		})
	}
}

func TestPlanNeverRepeatsAnEnvValue(t *testing.T) {
	_, err := testControl().plan(hutch.CreateSandbox{ID: "i1", Env: map[string]string{"TOKEN": "canary\x00"}}, hutch.Template{}, time.Now())
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("the error is %v; it must exist and name the variable only", err)
	}
}

func TestTTLZeroIsTheMaximum(t *testing.T) {
	c := testControl()
	c.cfg.MaxTTL = 3 * time.Hour
	if d, err := c.ttl(ptr(time.Duration(0))); err != nil || d != 3*time.Hour {
		t.Errorf("got %v, %v, want 3h", d, err)
	}
	c.cfg.MaxTTL = time.Minute
	if d, err := c.ttl(nil); err != nil || d != time.Minute {
		t.Errorf("the default past the maximum: got %v, %v, want 1m", d, err)
	}
}

func TestCheckExec(t *testing.T) {
	for name, c := range map[string]struct {
		spec  hutch.ExecSpec
		field string // empty: accepted
	}{
		"cmd":              {hutch.ExecSpec{Cmd: "true"}, ""},
		"argv":             {hutch.ExecSpec{Argv: []string{"true"}}, ""},
		"neither":          {hutch.ExecSpec{}, "cmd"},
		"both":             {hutch.ExecSpec{Cmd: "a", Argv: []string{"a"}}, "cmd"},
		"empty program":    {hutch.ExecSpec{Argv: []string{""}}, "argv"},
		"zero byte":        {hutch.ExecSpec{Cmd: "a\x00b"}, "cmd"},
		"negative timeout": {hutch.ExecSpec{Cmd: "a", Timeout: -1}, "timeout_seconds"},
		"timeout too long": {hutch.ExecSpec{Cmd: "a", Timeout: 25 * time.Hour}, "timeout_seconds"},
		"negative silence": {hutch.ExecSpec{Cmd: "a", NoOutputTimeout: -1}, "no_output_timeout_seconds"},
		"grace too long":   {hutch.ExecSpec{Cmd: "a", Grace: time.Hour}, "grace_seconds"},
		"budget too small": {hutch.ExecSpec{Cmd: "a", MaxOutputBytes: 1}, "max_output_bytes"},
		"budget too large": {hutch.ExecSpec{Cmd: "a", MaxOutputBytes: 1 << 30}, "max_output_bytes"},
		"env with a zero":  {hutch.ExecSpec{Cmd: "a", Env: map[string]string{"A": "\x00"}}, "env"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkExec(&c.spec)
			var e *hutch.Error
			if c.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				if c.spec.Timeout != hutch.DefaultExecTimeout || c.spec.MaxOutputBytes != hutch.DefaultOutputBytes || c.spec.Grace != hutch.DefaultGrace {
					t.Errorf("defaults not filled in: %+v", c.spec)
				}
				return
			}
			if !errors.As(err, &e) || e.Field != c.field {
				t.Errorf("got %v, want an error about %s", err, c.field)
			}
		})
	}
	bg := hutch.ExecSpec{Cmd: "server", Background: true}
	if err := checkExec(&bg); err != nil || bg.Timeout != 0 {
		t.Errorf("a background command got a timeout of %v (%v), want none", bg.Timeout, err)
	}
}
