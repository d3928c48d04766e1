package rootfs

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// FuzzCheckEROFS feeds superblocks: whatever passes must be as long as it says.
func FuzzCheckEROFS(f *testing.F) {
	good := make([]byte, 4096)
	binary.LittleEndian.PutUint32(good[superOffset:], erofsMagic)
	good[superOffset+offBlockBits] = blockBits
	good[superOffset+offBlocks] = 1
	f.Add(good)
	f.Add(good[:2000])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if checkEROFS(bytes.NewReader(b)) != nil {
			return
		}
		if blocks := binary.LittleEndian.Uint32(b[superOffset+offBlocks:]); int64(blocks)<<blockBits > int64(len(b)) {
			t.Fatalf("%d blocks passed in %d bytes", blocks, len(b))
		}
	})
}
