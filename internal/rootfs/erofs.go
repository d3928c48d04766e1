package rootfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Where the fields we read are in an EROFS superblock (little-endian; the kernel's
// fs/erofs/erofs_fs.h is the definition).
const (
	superOffset  = 1024 // from the start of the image
	superSize    = 128
	offMagic     = 0
	offBlockBits = 12
	offBlocks    = 36
	offIncompat  = 80

	erofsMagic = 0xE0F5E1E2
	// blockBits is the only block size that a kernel with 4 KiB pages mounts
	// everywhere: 1<<12.
	blockBits = 12
)

// checkEROFS refuses what is no EROFS image that every isolator can mount: gVisor
// knows none of the features that an older reader may not ignore, which is how
// compressed images are marked.
func checkEROFS(r io.ReaderAt) error {
	sb := make([]byte, superSize)
	if _, err := r.ReadAt(sb, superOffset); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("not an EROFS image: too short")
		}
		return fmt.Errorf("read superblock: %w", err)
	}
	le := binary.LittleEndian
	if le.Uint32(sb[offMagic:]) != erofsMagic {
		return errors.New("not an EROFS image")
	}
	if bits := sb[offBlockBits]; bits != blockBits {
		return fmt.Errorf("EROFS block size is 2^%d, want 2^%d", bits, blockBits)
	}
	if f := le.Uint32(sb[offIncompat:]); f != 0 {
		return fmt.Errorf("EROFS image needs features %#x: make it uncompressed (mkfs.erofs -Enoinline_data, without -z)", f)
	}
	size := int64(le.Uint32(sb[offBlocks:])) << blockBits
	if size == 0 {
		return errors.New("EROFS image without blocks")
	}
	if _, err := r.ReadAt(sb[:1], size-1); err != nil {
		return fmt.Errorf("EROFS image is cut short: its superblock says %d bytes", size)
	}
	return nil
}
