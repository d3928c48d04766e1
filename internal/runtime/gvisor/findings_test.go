package gvisor

import (
	"fmt"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// The tests in this file hold on to what gVisor was found to do inside, on which the
// guest agent relies. docs/gvisor.md tells the findings as a whole.

// ownGroup moves everything into a group below the root and switches the controllers
// on for its siblings, as a guest agent does, and makes a group called c.
const ownGroup = `
set -e
cd /sys/fs/cgroup
mkdir agent c
for p in $(cat cgroup.procs); do echo $p > agent/cgroup.procs 2>/dev/null || true; done
echo '+cpu +memory +pids' > cgroup.subtree_control
`

func TestFindingCgroupNeedsALeaf(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierMemory))
	if a := g.try(t, `echo '+pids' > /sys/fs/cgroup/cgroup.subtree_control; cat /sys/fs/cgroup/cgroup.subtree_control`); strings.Contains(a.Out, "pids\n") {
		t.Errorf("controllers could be switched on with processes in the root group: %s", a.Out)
	}
	g.sh(t, ownGroup)
	got := g.sh(t, `cat /sys/fs/cgroup/cgroup.subtree_control /proc/1/cgroup; cd /sys/fs/cgroup/c; ls cgroup.kill cpu.stat memory.current pids.current pids.events pids.max pids.peak; ls memory.peak 2>/dev/null || echo no memory.peak`)
	want := "cpu memory pids\n0::/agent\ncgroup.kill\ncpu.stat\nmemory.current\npids.current\npids.events\npids.max\npids.peak\nno memory.peak"
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestFindingCgroupKillReachesEveryone(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierMemory))
	g.sh(t, ownGroup)
	g.spawn(t, `echo 0 > /sys/fs/cgroup/c/cgroup.procs; setsid sleep 1000 & (setsid sh -c 'sleep 1001 & sleep 1002' &) ; sleep 1003`)
	until(t, "five processes in the group", func() bool { return g.sh(t, `cat /sys/fs/cgroup/c/pids.current`) >= "5" })
	g.sh(t, `echo 1 > /sys/fs/cgroup/c/cgroup.kill`)
	until(t, "an empty group", func() bool { return g.sh(t, `cat /sys/fs/cgroup/c/cgroup.procs | wc -l`) == "0" })
	g.sh(t, `grep -q 'populated 0' /sys/fs/cgroup/c/cgroup.events; rmdir /sys/fs/cgroup/c`)
}

func TestFindingPidsCapCountsThreads(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierMemory))
	g.sh(t, ownGroup+"echo 20 > c/pids.max")
	enter := `echo 0 > /sys/fs/cgroup/c/cgroup.procs; exec python3 -c "$1"`
	threads := g.await(t, g.send(t, false, "/bin/sh", "-c", enter, "sh", `
import threading,time
n=0
try:
  while n<100: threading.Thread(target=time.sleep,args=(5,),daemon=True).start(); n+=1
except RuntimeError: pass
print(n)`))
	if threads.Out != "19\n" {
		t.Errorf("with a cap of 20, python started %q threads beside its first", threads.Out)
	}
	forks := g.await(t, g.send(t, false, "/bin/sh", "-c", enter, "sh", `
import os,time
n=0
try:
  while n<100:
    if os.fork()==0: time.sleep(1); os._exit(0)
    n+=1
except BlockingIOError: pass
print(n)`))
	if forks.Out != "19\n" {
		t.Errorf("with a cap of 20, python forked %q children", forks.Out)
	}
	if got := g.sh(t, `cat /sys/fs/cgroup/c/pids.events`); got != "max 2" {
		t.Errorf("pids.events after two refusals: %q", got)
	}
}

func TestFindingUseOfAGroup(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierMemory))
	g.sh(t, ownGroup)
	got := g.sh(t, `echo 0 > /sys/fs/cgroup/c/cgroup.procs; exec python3 -c "
import time
b=bytearray(50<<20)
for i in range(0,len(b),4096): b[i]=1
end=time.process_time()+0.3
while time.process_time()<end: pass
print(open('/sys/fs/cgroup/c/memory.current').read())"`)
	var memory, cpu int64
	if _, err := fmt.Sscan(got, &memory); err != nil || memory < 50<<20 || memory > 80<<20 {
		t.Errorf("memory.current of a program with 50 MiB: %q", got)
	}
	got = g.sh(t, `sed -n 's/usage_usec //p' /sys/fs/cgroup/c/cpu.stat`)
	if _, err := fmt.Sscan(got, &cpu); err != nil || cpu < 300_000 || cpu > 2_000_000 {
		t.Errorf("cpu.stat after a program that used 0.3 s has ended: %q", got)
	}
}

func TestFindingInotify(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierDisk))
	got := g.sh(t, `mkdir /tmp/w && exec python3 -c "
import ctypes,os,struct
libc=ctypes.CDLL(None)
fd=libc.inotify_init1(0)
libc.inotify_add_watch(fd,b'/tmp/w',0x3c2)  # modify, moves, create, delete
open('/tmp/w/a','w').write('x'); os.rename('/tmp/w/a','/tmp/w/b'); os.unlink('/tmp/w/b')
b=os.read(fd,4096); i=0
while i<len(b):
  _,mask,_,n=struct.unpack_from('iIII',b,i); print(hex(mask), b[i+16:i+16+n].rstrip(b'\0').decode()); i+=16+n
"`)
	if want := "0x100 a\n0x2 a\n0x40 a\n0x80 b\n0x200 b"; got != want {
		t.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
}

// A setuid program gets its owner's rights: sudo and su work.
func TestFindingSetuid(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierDisk))
	got := g.sh(t, `cp "$(command -v python3)" /usr/local/bin/rootpy; chmod 4755 /usr/local/bin/rootpy
exec python3 -c "
import os
os.setgid(1000); os.setuid(1000)
os.execv('/usr/local/bin/rootpy',['rootpy','-c','import os; print(os.getuid(), os.geteuid())'])"`)
	if got != "1000 0" {
		t.Errorf("uid and effective uid in a setuid program: %q", got)
	}
}

// Root can do what agents do: mount a tmpfs, unshare, change owners.
func TestFindingRootIsRoot(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierDisk))
	got := g.sh(t, `mount -t tmpfs none /mnt && touch /mnt/x && umount /mnt && unshare -m true && touch /root/y && chown 1234:5678 /root/y && stat -c '%u %g' /root/y; grep NoNewPrivs /proc/self/status; grep -c tmpfs.*/tmp /proc/mounts || true`)
	if want := "1234 5678\nNoNewPrivs:\t0\n0"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestFindingJobControl(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierMemory))
	// Every step waits for what it must see, so that the load of the machine does
	// not matter.
	got := g.sh(t, `cat > /root/job.py <<'X'
import pty,os,select,time,fcntl,termios,struct,sys
pid,fd=pty.fork()
if pid==0: os.environ['PS1']='> '; os.execvp('bash',['bash','--norc','--noprofile','-i'])
def step(send,see):
  os.write(fd,send); got=b''; end=time.time()+20
  while see not in got:
    if time.time()>end: sys.exit('no %r in %r' % (see,got))
    if select.select([fd],[],[],0.2)[0]: got+=os.read(fd,4096)
step(b'sleep 100; echo slept\n',b'echo slept')
time.sleep(0.5)
step(b'\x1a',b'Stopped')
step(b'jobs\n',b'Stopped')
step(b'fg\n',b'sleep 100')
time.sleep(0.5)
step(b'\x03',b'> ')
step(b'echo code=$?\n',b'code=130')
fcntl.ioctl(fd,termios.TIOCSWINSZ,struct.pack('HHHH',40,120,0,0))
step(b'stty size\n',b'40 120')
print('ok')
X
exec python3 /root/job.py`)
	if got != "ok" {
		t.Errorf("job control: %s", got)
	}
}

// What a clone keeps: a read that was blocked, a file that was deleted, files of both
// tiers and of shared memory, and the guest stream, which is its own.
func TestFindingAcrossASnapshot(t *testing.T) {
	r := newRuntime(t)
	for _, tier := range tiers {
		t.Run(string(tier), func(t *testing.T) {
			s, g := start(t, r, newSpec(tier))
			g.sh(t, `echo root > /root/f; echo tmp > /tmp/f; echo shm > /dev/shm/f; rm /etc/hostname; mkfifo /root/fifo`)
			g.spawn(t, `exec python3 -c "
import os
d=open('/root/d','w+'); os.unlink('/root/d'); d.write('deleted'); d.flush()
open('/root/ready','w').close()
b=open('/root/fifo').read()
d.seek(0); open('/root/result.new','w').write(b+' '+d.read()); os.rename('/root/result.new','/root/result')"`)
			until(t, "the reader to be at its read", func() bool { return g.try(t, "test -e /root/ready").Code == 0 })
			dir := t.TempDir()
			if err := s.Checkpoint(t.Context(), dir, true); err != nil {
				t.Fatalf("checkpoint: %v", detail(err))
			}
			spec := newSpec(tier)
			spec.Hostname = "clone"
			if tier == hutch.TierDisk {
				spec.Resources.MemoryMB = 400
			}
			clone := create(t, r, spec)
			if err := clone.Start(t.Context(), runtime.StartOptions{Snapshot: dir}); err != nil {
				t.Fatalf("restore: %v", detail(err))
			}
			for name, g := range map[string]*guest{"lab": g, "clone": attach(t, clone)} {
				g.sh(t, `printf `+name+` > /root/fifo`)
				until(t, "the reader's result", func() bool { return g.try(t, "test -e /root/result").Code == 0 })
				got := g.sh(t, `cat /root/result; echo; cat /root/f /tmp/f /dev/shm/f; ls /etc/hostname 2>/dev/null; hostname; sed -n 's/^MemTotal: *//p' /proc/meminfo`)
				memory := "262144 kB"
				if name == "clone" && tier == hutch.TierDisk {
					memory = "409600 kB"
				}
				if want := name + " deleted\nroot\ntmp\nshm\n" + name + "\n" + memory; got != want {
					t.Errorf("in %s:\n%s\nwant:\n%s", name, got, want)
				}
			}
		})
	}
}

// What the profile locked is made of: a recursive bind of the root, read-only by itself, with
// writable places in it; and that below such a root nobody makes a user namespace.
func TestFindingConfinement(t *testing.T) {
	r := newRuntime(t)
	for _, tier := range tiers {
		t.Run(string(tier), func(t *testing.T) {
			_, g := start(t, r, newSpec(tier))
			got := g.sh(t, `
mkdir /run/in && mount --rbind / /run/in && mount -o remount,bind,ro /run/in && mount --bind /tmp /run/in/tmp
cat > /tmp/ns.py <<'X'
import ctypes,os
os.setgid(1000); os.setuid(1000)
libc=ctypes.CDLL(None,use_errno=True)
print('user namespace', 'made' if libc.unshare(0x10000000)==0 else os.strerror(ctypes.get_errno()))
X
touch /etc/outside && echo outside is writable
chroot /run/in sh -c 'touch /etc/inside 2>&1 | grep -o "Read-only.*"; touch /tmp/inside && echo place is writable; test -e /proc/1/status && python3 /tmp/ns.py'
python3 /tmp/ns.py
df / /tmp | awk 'NR>1 { print $2 }' | sort -u | wc -l`)
			want := "outside is writable\nRead-only file system\nplace is writable\nuser namespace Operation not permitted\nuser namespace made\n1"
			if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// With no_new_privs for the first process a setuid program gives nothing, while that process
// keeps what it has: it is root, and can still leave that behind.
func TestFindingNoNewPrivileges(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierDisk)
	spec.Profile = hutch.ProfileLocked
	_, g := start(t, r, spec)
	got := g.sh(t, `cp "$(command -v python3)" /usr/local/bin/rootpy; chmod 4755 /usr/local/bin/rootpy
mount -t tmpfs none /mnt && echo root mounts
exec python3 -c "
import os
os.setgid(1000); os.setuid(1000)
os.execv('/usr/local/bin/rootpy',['rootpy','-c','import os; print(os.getuid(), os.geteuid())'])"`)
	if want := "root mounts\n1000 1000"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// A process that says it must not be dumped is out of reach for another of the same user.
func TestFindingDumpable(t *testing.T) {
	r := newRuntime(t)
	_, g := start(t, r, newSpec(hutch.TierDisk))
	got := g.sh(t, `exec python3 -c "
import ctypes,os
libc=ctypes.CDLL(None,use_errno=True)
os.setgid(1000); os.setuid(1000)
libc.prctl(4,1,0,0,0)  # the change of the user has taken it away
ready,go=os.pipe(),os.pipe()
def child(hide):
  pid=os.fork()
  if pid==0:
    if hide: libc.prctl(4,0,0,0,0)
    os.write(ready[1],b'x'); os.read(go[0],1); os._exit(0)
  os.read(ready[0],1)
  return pid
def reach(pid):
  r=[]
  for what in ('mem','fd/%d'%ready[1],'root/etc/passwd'):
    try: os.close(os.open('/proc/%d/%s'%(pid,what),os.O_RDONLY|os.O_NONBLOCK)); r.append(what.split('/')[0])
    except OSError: pass
  if libc.ptrace(16,pid,0,0)==0: r.append('ptrace')
  return ' '.join(r)
for hide in (False,True):
  pid=child(hide)
  print('hidden' if hide else 'open', reach(pid))
  os.kill(pid,9)
"`)
	if want := "open mem fd root ptrace\nhidden"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
