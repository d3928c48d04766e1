package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// hostScript and chrootScript run what follows them as the first process of fresh
// pid, mount, ipc and uts namespaces, the second one inside a tree. Mounts made there
// are seen nowhere else and end with the last process; the shell stays to be the one
// whose end ends all others. Inside, names resolve as on this machine, where the tree has
// the file for it.
const (
	hostScript   = `mount -t proc proc /proc || exit 125; "$@"; exit $?`
	aroundScript = `mount -t proc proc /proc && mount -t proc proc "$0/proc" || exit 125; "$@"; exit $?`
	chrootScript = `mount -t proc proc "$0/proc" || exit 125
for f in /etc/resolv.conf /etc/hosts; do
	if [ -f "$f" ] && [ -f "$0$f" ] && [ ! -L "$0$f" ]; then mount --bind -o ro "$f" "$0$f" || exit 125; fi
done
%schroot "$0" "$@"; exit $?`
)

// bind is a file or directory of this machine that a job inside a tree finds below
// insideDir.
type bind struct {
	host, name string
	writable   bool
}

// bindScript makes the mounts of binds. What they are mounted on is in memory.
func bindScript(binds []bind) string {
	if len(binds) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "mount -t tmpfs -o mode=755 run \"$0/run\" && mkdir \"$0%[1]s\" || exit 125\n", insideDir)
	for _, m := range binds {
		at, make, ro := `"$0`+insideDir+"/"+m.name+`"`, "mkdir", ""
		if info, err := os.Stat(m.host); err == nil && !info.IsDir() {
			make = "touch"
		}
		if !m.writable {
			ro = "-o ro "
		}
		fmt.Fprintf(&b, "%s %s && mount --bind %s%s %s || exit 125\n", make, at, ro, quote(m.host), at)
	}
	return b.String()
}

// quote makes a word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// chrootPath is the PATH of commands in a tree.
const chrootPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// proxyVars are the variables by which a build reaches the network; nothing else of
// our environment is a build's business.
var proxyVars = []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY"}

// job is a command to run away from the rest of the machine.
type job struct {
	argv    []string
	tree    string // run inside this tree; empty = on the machine itself
	around  string // on the machine itself, with a /proc in this tree; empty = without
	binds   []bind // for a job inside a tree
	tmp     string // TMPDIR, on the machine itself only
	env     []string
	timeout time.Duration // 0 = none
	out     io.Writer     // stdout and stderr
}

// errTimeout is the cause when a job's own timeout ended it.
var errTimeout = errors.New("timed out")

// run runs j and returns when it has ended. When ctx ends or the timeout passes, every
// process of it is killed, whatever sessions or groups it made; also when this process
// dies. The error is then the context's cause or says that it timed out.
func (j job) run(ctx context.Context) error {
	if j.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, j.timeout, fmt.Errorf("%w after %s", errTimeout, j.timeout))
		defer cancel()
	}
	script, arg0 := hostScript, "sh"
	switch {
	case j.tree != "":
		script, arg0 = fmt.Sprintf(chrootScript, bindScript(j.binds)), j.tree
	case j.around != "":
		script, arg0 = aroundScript, j.around
	}
	args := append([]string{"--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL", "--", "/bin/sh", "-c", script, arg0}, j.argv...)
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.Env = j.environ()
	cmd.Stdout, cmd.Stderr = j.out, j.out
	// A group of its own, so that a Ctrl-C at our terminal is ours to handle. The
	// death signal holds unshare to us as --kill-child holds the namespace to it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second // for the kernel to end a large tree of processes

	// The death signal comes at the end of the thread that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", j.argv[0], err)
	}
	return nil
}

func (j job) environ() []string {
	path := "PATH=" + os.Getenv("PATH")
	if j.tree != "" {
		path = chrootPath
	}
	env := []string{path, "HOME=/root", "LC_ALL=C.UTF-8", "TERM=dumb", "DEBIAN_FRONTEND=noninteractive"}
	if j.tree == "" && j.tmp != "" {
		env = append(env, "TMPDIR="+j.tmp)
	}
	for _, name := range proxyVars {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, j.env...)
}
