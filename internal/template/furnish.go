package template

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/template/unpack"
)

// furniture is what every sandbox needs or expects to find, and a container image may
// lack: container runtimes put most of it in when they start one.
var furniture = []struct {
	path string
	mode uint32
}{
	{"/proc", 0o755},
	{"/sys", 0o755},
	{"/dev", 0o755},
	{"/etc", 0o755}, // the sandbox's name is written there
	{"/tmp", 0o1777},
	{"/root", 0o700},
	{"/workspace", 0o777},
}

// mountPlaces are directories that the sandbox's own things are mounted below.
var mountPlaces = []string{"/proc", "/sys", "/dev", "/opt"}

// hostsFile is what a container image without names of its own gets.
const hostsFile = "127.0.0.1 localhost\n::1 ip6-localhost ip6-loopback\n"

// furnish puts in what the image lacks, and notes what that was.
func (run *building) furnish(tree *unpack.Tree) error {
	run.begin(StepCustomise, "", nil)
	for _, name := range mountPlaces {
		if err := tree.Check(name); err != nil {
			return err
		}
	}
	for _, dir := range furniture {
		if err := run.addDir(tree, dir.path, dir.mode); err != nil {
			return err
		}
	}
	d := run.plan.record.Defaults
	if err := run.addDir(tree, d.Cwd, 0o755); err != nil {
		return fmt.Errorf("make the image's WORKDIR: %w", err)
	}
	if added, err := tree.AddFile("etc/hosts", []byte(hostsFile)); err != nil {
		return err
	} else if added {
		run.note("added: /etc/hosts")
	}
	return checkUser(tree, d.User)
}

func (run *building) addDir(tree *unpack.Tree, name string, mode uint32) error {
	added, err := tree.AddDir(name, mode)
	if added {
		run.note("added: %s, mode %04o", name, mode)
	}
	return err
}

// maxAccounts bounds what is read of the image's lists of users and groups, in bytes; it
// is what the guest agent reads of them.
const maxAccounts = 4 << 20

// checkUser refuses an image whose USER nothing could be started as. A number needs no
// entry, and root is always there.
func checkUser(tree *unpack.Tree, spec string) error {
	user, group, _ := strings.Cut(spec, ":")
	for _, c := range []struct{ name, file, what string }{
		{user, "etc/passwd", "user"}, {group, "etc/group", "group"},
	} {
		if c.name == "" || c.name == "root" {
			continue
		}
		if _, err := strconv.ParseUint(c.name, 10, 32); err == nil {
			continue
		}
		list, err := tree.ReadFile(c.file, maxAccounts)
		if err != nil {
			return err
		}
		has := func(line []byte) bool { return bytes.HasPrefix(line, []byte(c.name+":")) }
		if !slices.ContainsFunc(bytes.Split(list, []byte("\n")), has) {
			return hutch.Errorf(hutch.CodeBadRequest, "the image's USER is %q, but its /%s has no such %s", spec, c.file, c.what)
		}
	}
	return nil
}
