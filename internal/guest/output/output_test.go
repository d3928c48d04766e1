package output

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// pattern is n bytes of which any run of eight tells its offset.
func pattern(n int) []byte {
	b := make([]byte, 0, n+8)
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, "%07d\n", i)
	}
	return b[:n]
}

func spillOptions(t *testing.T, budget int, fileCap int64) Options {
	t.Helper()
	dir := Dir{Path: filepath.Join(t.TempDir(), "a", "exec")}
	return Options{Budget: budget, FileCap: fileCap, Open: func() (*File, error) {
		return dir.Create("e1", "stdout", Owner{os.Getuid(), os.Getgid()})
	}}
}

// follow reads a stream from off as a reader with buffers of size would, and gives the
// bytes and the gaps.
func follow(t *testing.T, s *Stream, off int64, size int) (got []byte, gaps [][2]int64) {
	t.Helper()
	buf := make([]byte, size)
	for {
		n, next := s.ReadAt(buf, off)
		switch {
		case n > 0:
			got = append(got, buf[:n]...)
			off += int64(n)
		case next > off:
			gaps = append(gaps, [2]int64{off, next})
			off = next
		case off >= s.Total():
			return got, gaps
		case next < off:
			t.Fatalf("ReadAt(%d) = 0, %d of total %d: no way on", off, next, s.Total())
		}
	}
}

func TestStreamKeepsWhatFits(t *testing.T) {
	p := NewPool(1 << 20)
	s := p.NewStream(spillOptions(t, 100_000, 1<<30))
	want := pattern(100_000)
	for b := want; len(b) > 0; {
		k := min(len(b), 777)
		s.Write(b[:k])
		b = b[k:]
	}
	s.End()
	o := s.Output()
	if !bytes.Equal(o.Head, want) || o.Tail != nil || o.Dropped != 0 || o.Path != "" || o.Total != 100_000 {
		t.Errorf("Output: %d head, %d tail, total %d, dropped %d, path %q; want all of it and no file",
			len(o.Head), len(o.Tail), o.Total, o.Dropped, o.Path)
	}
	if used := p.Used(); used < 100_000 || used > 100_000+chunkSize {
		t.Errorf("an ended stream of 100,000 bytes holds %d", used)
	}
	s.Release()
	if used := p.Used(); used != 0 {
		t.Errorf("a released stream holds %d bytes", used)
	}
}

func TestStreamOverBudget(t *testing.T) {
	for _, budget := range []int{64, 1000, chunkSize, 3*chunkSize + 5, 1 << 20} {
		for _, extra := range []int{1, 63, 64, 100, chunkSize, 5*chunkSize + 1} {
			t.Run(fmt.Sprintf("%d+%d", budget, extra), func(t *testing.T) {
				p := NewPool(64 << 20)
				s := p.NewStream(spillOptions(t, budget, 1<<30))
				want := pattern(budget + extra)
				for b := want; len(b) > 0; {
					k := min(len(b), 5000)
					s.Write(b[:k])
					b = b[k:]
				}
				s.End()
				o := s.Output()
				head, tail := budget/4, budget-budget/4
				if !bytes.Equal(o.Head, want[:head]) {
					t.Errorf("head is %d bytes, want the first %d", len(o.Head), head)
				}
				if !bytes.Equal(o.Tail, want[len(want)-tail:]) {
					t.Errorf("tail is %d bytes, want the last %d", len(o.Tail), tail)
				}
				if o.Dropped != int64(extra) || o.Total != int64(len(want)) || o.FileDropped != 0 {
					t.Errorf("dropped %d of %d (file %d), want %d of %d (0)", o.Dropped, o.Total, o.FileDropped, extra, len(want))
				}
				file, err := os.ReadFile(o.Path)
				if err != nil || !bytes.Equal(file, want) {
					t.Errorf("file: %d bytes, %v; want all %d", len(file), err, len(want))
				}
				if got, gaps := follow(t, s, 0, 900); !bytes.Equal(got, want) || gaps != nil {
					t.Errorf("follow: %d bytes, gaps %v", len(got), gaps)
				}
				if limit := int64(budget + 3*chunkSize); p.Used() > limit {
					t.Errorf("holds %d bytes, want at most %d", p.Used(), limit)
				}
			})
		}
	}
}

func TestStreamPoolExhausted(t *testing.T) {
	p := NewPool(4 * chunkSize)
	a := p.NewStream(spillOptions(t, 1<<20, 1<<30))
	b := p.NewStream(spillOptions(t, 1<<20, 1<<30))
	want := pattern(500_000)
	for off := 0; off < len(want); off += 1000 {
		a.Write(want[off : off+1000])
		b.Write(want[off : off+1000])
	}
	for name, s := range map[string]*Stream{"a": a, "b": b} {
		s.End()
		o := s.Output()
		if o.Dropped == 0 || o.Dropped+int64(len(o.Head)+len(o.Tail)) != o.Total {
			t.Errorf("%s: %d+%d kept, %d dropped of %d", name, len(o.Head), len(o.Tail), o.Dropped, o.Total)
		}
		if len(o.Head)+len(o.Tail) < floor {
			t.Errorf("%s: kept %d bytes, want at least %d", name, len(o.Head)+len(o.Tail), floor)
		}
		if got, gaps := follow(t, s, 0, 4096); !bytes.Equal(got, want) || gaps != nil {
			t.Errorf("%s: follow gave %d bytes and gaps %v, want all %d", name, len(got), gaps, len(want))
		}
	}
	if limit := int64(4*chunkSize + 2*(floor+2*chunkSize)); p.Used() > limit {
		t.Errorf("both hold %d bytes, want at most %d", p.Used(), limit)
	}
}

func TestStreamFileCap(t *testing.T) {
	s := NewPool(64 << 20).NewStream(spillOptions(t, 1000, minFile))
	want := pattern(5*minFile + 12345)
	for b := want; len(b) > 0; {
		k := min(len(b), 60_000)
		s.Write(b[:k])
		b = b[k:]
	}
	s.End()
	o := s.Output()
	file, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	if len(file) > minFile || len(file) < minFile/2 {
		t.Errorf("file has %d bytes, want between half its cap and its cap of %d", len(file), minFile)
	}
	if o.FileDropped != int64(len(want)-len(file)) || !bytes.Equal(file, want[o.FileDropped:]) {
		t.Errorf("file (%d bytes, %d dropped) is not the end of the stream of %d", len(file), o.FileDropped, len(want))
	}
	got, gaps := follow(t, s, 0, 5000)
	if len(gaps) != 1 || gaps[0][1] != o.FileDropped {
		t.Fatalf("gaps %v, want one up to %d", gaps, o.FileDropped)
	}
	if all := append(bytes.Clone(want[:gaps[0][0]]), want[gaps[0][1]:]...); !bytes.Equal(got, all) {
		t.Errorf("follow gave %d bytes, want %d", len(got), len(all))
	}
}

// What is said of a stream whose memory was given back is true of what its file still has.
func TestForgottenOutput(t *testing.T) {
	for name, cut := range map[string]int64{"that lacks the beginning": -1, "cut short inside": 2000, "emptied inside": 0} {
		t.Run(name, func(t *testing.T) {
			s := NewPool(64 << 20).NewStream(spillOptions(t, 1000, minFile))
			want := pattern(3 * minFile)
			if cut >= 0 {
				want = want[:minFile/2]
			}
			for b := want; len(b) > 0; {
				k := min(len(b), 60_000)
				s.Write(b[:k])
				b = b[k:]
			}
			s.Forget()
			defer s.Release()
			if cut >= 0 {
				if err := os.Truncate(s.file.path, cut); err != nil {
					t.Fatal(err)
				}
			}
			o := s.Output()
			if o.Total != int64(len(want)) || o.Total-o.Dropped != int64(len(o.Head)+len(o.Tail)) {
				t.Errorf("head %d, tail %d, dropped %d of %d", len(o.Head), len(o.Tail), o.Dropped, o.Total)
			}
			if !bytes.HasPrefix(want, o.Head) || !bytes.HasSuffix(want, o.Tail) {
				t.Error("head or tail are not those of the stream")
			}
		})
	}
}

func TestStreamDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("mount:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v (a file is still open)", err)
		}
	})
	fill := func(leave int64) {
		free, _ := Free(dir)
		if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, free-leave), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := pattern(20 << 20)
	for name, leave := range map[string]int64{"some room": 6 << 20, "no room": 0} {
		t.Run(name, func(t *testing.T) {
			os.Remove(filepath.Join(dir, "fill"))
			fill(leave)
			d := Dir{Path: filepath.Join(dir, "exec")}
			s := NewPool(64 << 20).NewStream(Options{Budget: 1000, FileCap: 1 << 30, Open: func() (*File, error) {
				return d.Create("e1", "stdout", Owner{})
			}})
			for off := 0; off < len(want); off += 1 << 16 {
				s.Write(want[off : off+1<<16])
			}
			s.End()
			o := s.Output()
			if !s.DiskFull() {
				t.Error("the full disk was not noticed")
			}
			if len(o.Head) != 250 || len(o.Tail) != 750 {
				t.Errorf("kept %d+%d bytes, want the budget", len(o.Head), len(o.Tail))
			}
			switch {
			case leave == 0 && (o.Path != "" || o.FileDropped != o.Total):
				t.Errorf("path %q, file dropped %d; want no file", o.Path, o.FileDropped)
			case leave > 0:
				file, err := os.ReadFile(o.Path)
				if err != nil || !bytes.Equal(file, want[o.FileDropped:]) || len(file) < minFile {
					t.Errorf("file: %d bytes, dropped %d, %v; want the end of the stream", len(file), o.FileDropped, err)
				}
			}
			s.Release()
			os.RemoveAll(filepath.Join(dir, "exec"))
		})
	}
}

// Any number of readers, at any offset and with any buffer, see the bytes of the stream,
// while it is written and moved about.
func TestStreamFollowers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for round := range 8 {
		total := 1 + rnd.IntN(3<<20)
		want := pattern(total)
		budget := 64 + rnd.IntN(1<<20)
		s := NewPool(int64(rnd.IntN(2 << 20))).NewStream(spillOptions(t, budget, int64(rnd.IntN(8<<20))))
		var wg sync.WaitGroup
		for range 3 {
			off, size := int64(rnd.IntN(total)), 1+rnd.IntN(100_000)
			wg.Go(func() {
				buf := make([]byte, size)
				for {
					changed := s.Changed()
					n, next := s.ReadAt(buf, off)
					switch {
					case n > 0:
						if !bytes.Equal(buf[:n], want[off:off+int64(n)]) {
							t.Errorf("round %d: bytes at %d are not those written", round, off)
							return
						}
						off += int64(n)
					case next > off:
						off = next
					case off >= int64(total):
						return
					default:
						<-changed
					}
				}
			})
		}
		for b := want; len(b) > 0; {
			k := min(len(b), 1+rnd.IntN(65536))
			s.Write(b[:k])
			b = b[k:]
		}
		s.End()
		wg.Wait()
		s.Release()
	}
}

func TestDirFollowsNoLinks(t *testing.T) {
	base := t.TempDir()
	target := t.TempDir()
	if err := os.Symlink(target, filepath.Join(base, "exec")); err != nil {
		t.Fatal(err)
	}
	if _, err := (Dir{Path: filepath.Join(base, "exec")}).Create("e1", "stdout", Owner{os.Getuid(), os.Getgid()}); err == nil {
		t.Error("a directory behind a link was used")
	}
	base = t.TempDir()
	if err := os.Mkdir(filepath.Join(base, "e1"), 0o755); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(target, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(base, "e1", "stdout")); err != nil {
		t.Fatal(err)
	}
	f, err := (Dir{Path: base}).Create("e1", "stdout", Owner{os.Getuid(), os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if _, err := f.f.WriteAt([]byte("output"), 0); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(victim); string(b) != "precious" {
		t.Errorf("the file behind the link was written: %q", b)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte{1, 200, 255, 3}, uint32(64), uint32(0), uint32(1<<20))
	f.Add([]byte{255, 255, 255, 255, 255}, uint32(20000), uint32(40000), uint32(1))
	f.Fuzz(func(t *testing.T, sizes []byte, budget, pool, off uint32) {
		if len(sizes) > 200 {
			sizes = sizes[:200]
		}
		s := NewPool(int64(pool % (1 << 20))).NewStream(Options{Budget: 64 + int(budget%(1<<18))})
		var want []byte
		for i, k := range sizes {
			b := bytes.Repeat([]byte{byte(i)}, int(k)*37)
			want = append(want, b...)
			s.Write(b)
		}
		s.End()
		o := s.Output()
		if o.Total != int64(len(want)) || int64(len(o.Head)+len(o.Tail))+o.Dropped != o.Total {
			t.Fatalf("head %d, tail %d, dropped %d of %d", len(o.Head), len(o.Tail), o.Dropped, len(want))
		}
		if !bytes.HasPrefix(want, o.Head) || !bytes.HasSuffix(want, o.Tail) {
			t.Fatal("head or tail are not those of the stream")
		}
		start := int64(off) % (int64(len(want)) + 1)
		got, gaps := follow(t, s, start, 333)
		rest := want[start:]
		for _, g := range gaps {
			rest = append(bytes.Clone(rest[:g[0]-start]), rest[g[1]-start:]...)
			start += g[1] - g[0]
		}
		if !bytes.Equal(got, rest) {
			t.Fatalf("follow from %d: %d bytes, want %d", off, len(got), len(rest))
		}
	})
}
