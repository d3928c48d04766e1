package ociimage

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"hutch.dev/hutch"
)

// errMismatch is what every difference between bytes and digest is.
func errMismatch(what string, args ...any) error {
	return hutch.Errorf(hutch.CodeBadRequest, "the image is damaged or was tampered with: "+what, args...)
}

// verifyBytes compares a whole blob with its descriptor.
func verifyBytes(d v1.Descriptor, data []byte) error {
	_, err := io.Copy(io.Discard, verified(io.NopCloser(bytes.NewReader(data)), d))
	return err
}

// verified wraps a blob's reader: at its end, size and digest must be the descriptor's,
// or the read fails. It never reads past the size.
func verified(r io.ReadCloser, d v1.Descriptor) io.ReadCloser {
	return &verifier{r: r, want: d.Digest, size: d.Size, sum: sha256.New()}
}

// verifier compares a stream with a digest at its end.
type verifier struct {
	r    io.ReadCloser
	want v1.Hash
	size int64 // -1 = unknown
	n    int64
	sum  hash.Hash
}

func (v *verifier) Read(p []byte) (int, error) {
	if v.want.Algorithm != "sha256" {
		return 0, hutch.Errorf(hutch.CodeBadRequest, "the image uses digests of the kind %q; only sha256 is supported", v.want.Algorithm)
	}
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	v.n += int64(n)
	if v.size >= 0 && v.n > v.size {
		return 0, errMismatch("%s is longer than the %d bytes it should have", v.want, v.size)
	}
	if errors.Is(err, io.EOF) {
		if v.size >= 0 && v.n != v.size {
			return 0, errMismatch("%s has %d bytes and should have %d", v.want, v.n, v.size)
		}
		if got := hex.EncodeToString(v.sum.Sum(nil)); got != v.want.Hex {
			return 0, errMismatch("the content of %s has the digest sha256:%s", v.want, got)
		}
	}
	return n, err
}

func (v *verifier) Close() error { return v.r.Close() }

// zstdWindow is the largest window of a zstd stream that is decoded, in bytes: memory that
// a hostile stream can make us take. It is the most that its format advises to support,
// eight times over.
const zstdWindow = 64 << 20

// Stream is a layer's tar stream.
type Stream struct {
	io.Reader
	blob io.ReadCloser // the layer as it lies there
	free func()        // what the decoder holds
}

// Open opens the layer's tar stream, decompressed. Read to its end without an error, it
// is the one its diff id names, and the compressed form the one its digest names. What is
// read of the compressed form is written to meter, if there is one.
func (l Layer) Open(ctx context.Context, meter io.Writer) (*Stream, error) {
	blob, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	if meter != nil {
		blob = metered{io.TeeReader(blob, meter), blob}
	}
	s := &Stream{blob: blob, free: func() {}}
	if err := s.decompress(); err != nil {
		blob.Close()
		return nil, err
	}
	s.Reader = verified(io.NopCloser(s.Reader), v1.Descriptor{Digest: l.DiffID, Size: -1})
	return s, nil
}

// Explain returns why an error came of reading s: if the layer is not the one that was
// promised, that, whatever else seemed wrong with it. It reads the compressed form to its
// end to find out.
func (s *Stream) Explain(err error) error {
	var e *hutch.Error
	if _, rest := io.Copy(io.Discard, s.blob); errors.As(rest, &e) {
		return rest
	}
	return err
}

// Close frees the stream.
func (s *Stream) Close() error {
	s.free()
	return s.blob.Close()
}

// metered is a reader whose bytes somebody counts.
type metered struct {
	io.Reader
	io.Closer
}

// decoder is a decompressed layer. At its end it reads what is left of the compressed
// form, so that all of that is verified.
type decoder struct {
	io.Reader
	raw io.Reader
}

func (d decoder) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		if _, rest := io.Copy(io.Discard, d.raw); rest != nil {
			return 0, rest
		}
		return n, io.EOF
	}
	if err != nil {
		err = streamError(err)
	}
	return n, err
}

// decompress tells gzip, zstd and plain tar apart by how they begin: what media types
// say of it is often wrong.
func (s *Stream) decompress() error {
	raw := bufio.NewReaderSize(s.blob, 256<<10)
	magic, err := raw.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	s.Reader = raw
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(raw)
		if err != nil {
			return streamError(err)
		}
		s.Reader = decoder{z, raw}
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderMaxMemory(zstdWindow))
		if err != nil {
			return streamError(err)
		}
		s.Reader, s.free = decoder{z, raw}, z.Close
	}
	return nil
}

// streamError makes an error of a decoder the image's fault, and leaves those of the
// network or of verification as they are.
func streamError(err error) error {
	var e *hutch.Error
	if errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("decompress layer: %w", err)
}
