package template

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// customise makes the recipe's users, directories and files, runs its commands, and
// tidies up. Files are written through an [os.Root]: a link in the tree that leads out
// of it is an error, not a way to the machine's own files.
func (run *building) customise(ctx context.Context) error {
	run.begin(StepCustomise, "", nil)
	root, err := os.OpenRoot(run.tree)
	if err != nil {
		return fmt.Errorf("open tree: %w", err)
	}
	defer func() { _ = root.Close() }()
	// What the recipe below did is in the tree already; its variables and users count
	// wherever all of them do.
	r, whole := run.plan.own, run.plan.recipe
	for _, u := range r.Users {
		if err := run.addUser(ctx, u); err != nil {
			return fmt.Errorf("add user %s: %w", u.Name, err)
		}
	}
	for _, u := range whole.Users {
		if err := allowSudo(root, u, whole.Env); err != nil {
			return fmt.Errorf("let user %s become others: %w", u.Name, err)
		}
	}
	for _, d := range r.Directories {
		if err := run.makeDirectory(root, d); err != nil {
			return fmt.Errorf("make directory %s: %w", d.Path, err)
		}
	}
	for _, f := range r.Files {
		if err := run.writeFile(root, f); err != nil {
			return fmt.Errorf("write file %s: %w", f.Path, err)
		}
	}
	if err := writeEnvironment(root, whole.Env); err != nil {
		return err
	}
	for i, c := range r.Commands {
		run.begin(StepCustomise, c.Name, nil)
		run.at(float64(i) / float64(len(r.Commands)+1))
		j := job{argv: []string{"/bin/sh", "-ec", "cd /\n" + c.Run}, tree: run.tree, timeout: c.Timeout, out: run.tracker}
		if err := j.run(ctx); err != nil {
			return err
		}
	}
	run.begin(StepCustomise, "", nil)
	return run.tidy(root)
}

// addUser makes an account with useradd, so that it is made as the distribution does.
func (run *building) addUser(ctx context.Context, u User) error {
	argv := []string{"useradd", "--create-home", "--user-group", "--no-log-init", "--uid", fmt.Sprint(u.UID), "--shell", u.Shell}
	if len(u.Groups) > 0 {
		argv = append(argv, "--groups", strings.Join(u.Groups, ","))
	}
	return job{argv: append(argv, u.Name), tree: run.tree, out: run.tracker}.run(ctx)
}

// allowSudo writes a user's rule for sudo, if it may use it.
func allowSudo(root *os.Root, u User, env map[string]string) error {
	if !u.Sudo {
		return nil
	}
	rule := fmt.Sprintf("%s ALL=(ALL:ALL) NOPASSWD: ALL\n", u.Name)
	// sudo starts commands with a clean environment, and a PATH of its own.
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name != "PATH" {
			rule += fmt.Sprintf("Defaults:%s env_keep += %q\n", u.Name, name)
		}
	}
	return replaceFile(root, "etc/sudoers.d/"+u.Name, []byte(rule), 0o440)
}

func (run *building) makeDirectory(root *os.Root, d Directory) error {
	name := inTree(d.Path)
	if err := root.MkdirAll(name, 0o755); err != nil {
		return err
	}
	return run.own(root, name, d.Owner, d.Mode)
}

func (run *building) writeFile(root *os.Root, f File) error {
	name := inTree(f.Path)
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := replaceFile(root, name, []byte(f.Content), 0o600); err != nil {
		return err
	}
	return run.own(root, name, f.Owner, f.Mode)
}

// own sets owner and mode, in this order: a change of owner clears setuid.
func (run *building) own(root *os.Root, name, owner string, mode Mode) error {
	id := 0
	if u := run.plan.recipe.user(owner); u != nil {
		id = u.UID
	}
	if err := root.Chown(name, id, id); err != nil {
		return err
	}
	return root.Chmod(name, mode.fileMode())
}

// writeEnvironment writes what PAM gives to login sessions, those of su and ssh too.
func writeEnvironment(root *os.Root, env map[string]string) error {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&b, "%s=\"%s\"\n", name, env[name])
	}
	if err := replaceFile(root, "etc/environment", []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write /etc/environment: %w", err)
	}
	return nil
}

// replaceFile writes a file in the place of whatever has its name: a link there is
// replaced, not followed.
func replaceFile(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	if err := root.WriteFile(name, data, mode); err != nil {
		return err
	}
	return root.Chmod(name, mode) // whatever the umask
}

// inTree turns an absolute path in the image into one below the tree.
func inTree(p string) string {
	if p = strings.TrimPrefix(filepath.Clean(p), "/"); p != "" {
		return p
	}
	return "."
}
