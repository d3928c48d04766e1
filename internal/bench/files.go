package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestclient"
)

const (
	// Where the file is, and whose.
	filePath = "/root/bench.bin"
	fileUser = "root"

	// fileRunLimit bounds an upload and a download: a GiB at 10 MB/s, each.
	fileRunLimit = 4 * time.Minute

	// smallFiles is how much smaller the files are that the server's memory is measured with
	// first: if it grew with the size, it would show.
	smallFiles = 16

	// copyBytes is how much is read at once of what comes.
	copyBytes = 256 << 10
)

// FileLimit is what a transfer may take through the API, in multiples of the time that the
// same transfer takes by hand in the same run.
const FileLimit = 2.0

// Files measures the transfer of a file into one sandbox that stands, and back. The floor
// has a sandbox of its own and makes the same calls of the guest by hand. Every byte that
// comes back is checked. When it is ended early the report is of the runs until then, and
// the error says why.
func Files(ctx context.Context, s Settings, srv Server, floor *Floor, progress func(done int)) (_ *Report, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	st, rep, err := stand(ctx, "files", s, srv.API, floor)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.kill(ctx)) }()
	stores := map[string]fileStore{SubjectHutch: apiFiles{srv, st.sid}}
	if st.floor != nil {
		stores[SubjectFloor] = floorFiles{st.floor.guest}
	}
	small, err := peakOf(srv.PID, s.Bytes/smallFiles, func() error {
		c := newContent(s.Bytes / smallFiles)
		for range max(1, s.Warmup) {
			if err := fileRun(ctx, stores[SubjectHutch], c, &clock{us: map[string]int64{}}); err != nil {
				return fmt.Errorf("a small file: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return rep.finish(nil, err)
	}
	var runs []Run
	content := newContent(s.Bytes)
	large, err := peakOf(srv.PID, s.Bytes, func() (err error) {
		runs, err = measure(ctx, series{n: s.N, warmup: s.Warmup, parallel: 1, limit: fileRunLimit, progress: progress},
			st.subjects(func(ctx context.Context, name string, t *clock) error { return fileRun(ctx, stores[name], content, t) }))
		return err
	})
	for _, p := range []*Peak{small, large} {
		if p != nil {
			rep.Peaks = append(rep.Peaks, *p)
		}
	}
	return rep.finish(runs, err)
}

// fileStore is where the files of a subject go.
type fileStore interface {
	upload(ctx context.Context, content io.Reader, size int64) error
	download(ctx context.Context) (io.ReadCloser, error)
}

// fileRun uploads a file, over the one that is there, and downloads it.
func fileRun(ctx context.Context, f fileStore, c content, t *clock) error {
	asked := time.Now()
	if err := f.upload(ctx, c.reader(), c.size); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	t.since(MetricUpload, asked)
	asked = time.Now()
	body, err := f.download(ctx)
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	n, sum, err := checksum(body)
	if err := errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("download: after %d of %d bytes: %w", n, c.size, err)
	}
	t.since(MetricDownload, asked)
	if n != c.size || sum != c.sum {
		return fmt.Errorf("download: %d bytes of %d came, or other ones than went", n, c.size)
	}
	return nil
}

type apiFiles struct {
	srv Server
	sid hutch.SandboxID
}

func (a apiFiles) upload(ctx context.Context, content io.Reader, size int64) error {
	return a.srv.upload(ctx, a.sid, filePath, content, size)
}

func (a apiFiles) download(ctx context.Context) (io.ReadCloser, error) {
	return a.srv.download(ctx, a.sid, filePath)
}

type floorFiles struct{ guest *guestclient.Client }

func (f floorFiles) upload(ctx context.Context, content io.Reader, size int64) error {
	res, err := f.guest.WriteFile(ctx, hutch.WriteFile{FileRef: hutch.FileRef{Path: filePath, User: fileUser}, Content: content})
	if err == nil && res.Offset != size {
		err = fmt.Errorf("the guest says that %d of %d bytes are there", res.Offset, size)
	}
	return err
}

func (f floorFiles) download(ctx context.Context) (io.ReadCloser, error) {
	c, err := f.guest.OpenFile(ctx, hutch.ReadFile{FileRef: hutch.FileRef{Path: filePath, User: fileUser}})
	if err != nil {
		return nil, err
	}
	return c.Body, nil
}

// content is what is transferred: random bytes, some of which the guest's stream escapes,
// and which nothing on the way could make shorter.
type content struct {
	size int64
	sum  uint32
}

// block is what content repeats.
var block = sync.OnceValue(func() []byte {
	r := rand.New(rand.NewPCG(1, 2)) // the same bytes in every benchmark
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
})

var castagnoli = crc32.MakeTable(crc32.Castagnoli) // which CPUs compute at memory speed

func newContent(size int64) content {
	c := content{size: size}
	_, c.sum, _ = checksum(c.reader()) // it reads from memory
	return c
}

func (c content) reader() io.Reader { return io.LimitReader(&repeated{}, c.size) }

// repeated is block, again and again.
type repeated struct{ at int }

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, block()[r.at:])
	r.at = (r.at + n) % len(block())
	return n, nil
}

// checksum reads to the end.
func checksum(r io.Reader) (n int64, sum uint32, err error) {
	buf := make([]byte, copyBytes)
	for {
		m, err := r.Read(buf)
		n += int64(m)
		sum = crc32.Update(sum, castagnoli, buf[:m])
		if errors.Is(err, io.EOF) {
			return n, sum, nil
		}
		if err != nil {
			return n, sum, err
		}
	}
}
