package sqlite

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math"

	"hutch.dev/hutch"
)

// A cursor is where a listing goes on: the number of the last record of the page before
// it. The letter says of which listing, so that a cursor of one is refused by another.
const (
	cursorSandboxes byte = 's'
	cursorOldest    byte = 'o' // sandboxes, first stored first
	cursorExecs     byte = 'x'
	cursorOldExecs  byte = 'y' // commands, first stored first
	cursorUsage     byte = 'u'
	cursorBySandbox byte = 'v' // what was used, by sandbox
)

const (
	cursorVersion byte = 1
	cursorLen          = 1 + 1 + 8 + 4 // version, kind, number, CRC-32 of these
)

// cursorText is strict: each cursor has one spelling.
var cursorText = base64.RawURLEncoding.Strict()

func encodeCursor(kind byte, seq int64) string {
	b := make([]byte, 0, cursorLen)
	b = append(b, cursorVersion, kind)
	b = binary.BigEndian.AppendUint64(b, uint64(seq))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return cursorText.EncodeToString(b)
}

// decodeCursor returns the number after which, in its order, the listing goes on. The empty
// cursor is the start of one that goes down. The checksum is there to find mistakes, not to keep anybody out: what a
// made-up cursor can reach, the filter of the listing allows anyway.
func decodeCursor(kind byte, s string) (int64, error) {
	if s == "" {
		return math.MaxInt64, nil
	}
	var buf [cursorLen]byte
	if cursorText.DecodedLen(len(s)) != cursorLen {
		return 0, badCursor()
	}
	if n, err := cursorText.Decode(buf[:], []byte(s)); err != nil || n != cursorLen {
		return 0, badCursor()
	}
	body, sum := buf[:cursorLen-4], binary.BigEndian.Uint32(buf[cursorLen-4:])
	seq := binary.BigEndian.Uint64(buf[2:])
	if body[0] != cursorVersion || body[1] != kind || crc32.ChecksumIEEE(body) != sum || seq == 0 || seq > math.MaxInt64 {
		return 0, badCursor()
	}
	return int64(seq), nil
}

func badCursor() error {
	return hutch.FieldErrorf("cursor", "it is not one that this listing gave: send it as it came, or leave it out to start again")
}

// Bounds of a page, as package store promises them.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// pageLimit is the number of records for a Limit as asked for.
func pageLimit(asked int) int {
	if asked <= 0 {
		return defaultLimit
	}
	return min(asked, maxLimit)
}
