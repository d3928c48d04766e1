package files

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// checkMetadata refuses what cannot be a file's metadata, and brings its keys into the form
// in which they are stored: lower case, as they come back in the headers of some clients.
func checkMetadata(in map[string]string) (map[string]string, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(in))
	sum := 0
	for _, k := range slices.Sorted(maps.Keys(in)) {
		key, value := strings.ToLower(k), in[k]
		switch {
		case key == "" || len(key) > hutch.MaxMetadataKey:
			return nil, hutch.FieldErrorf("metadata", "the key %.60q is not of 1 to %d bytes", k, hutch.MaxMetadataKey)
		case !printable(key) || strings.Contains(key, " "):
			return nil, hutch.FieldErrorf("metadata", "the key %.60q has something else than printable ASCII in it", k)
		case !printable(value):
			return nil, hutch.FieldErrorf("metadata", "the value of %.60q has something else than printable ASCII in it", k)
		}
		if _, twice := out[key]; twice {
			return nil, hutch.FieldErrorf("metadata", "the key %.60q comes twice, in upper and lower case", key)
		}
		out[key] = value
		sum += len(key) + len(value)
	}
	if sum > hutch.MaxMetadataBytes {
		return nil, hutch.FieldErrorf("metadata", "is %d bytes long, more than %d", sum, hutch.MaxMetadataBytes)
	}
	return out, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// writeMetadata gives a new file its metadata.
func writeMetadata(fd int, metadata map[string]string) error {
	for k, v := range metadata {
		if err := unix.Fsetxattr(fd, hutch.MetadataPrefix+k, []byte(v), 0); err != nil {
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.E2BIG) {
				return hutch.FieldErrorf("metadata", "is more than this file system keeps for a file")
			}
			return err
		}
	}
	return nil
}

// readMetadata is a file's metadata as far as it may be read, and no more than a file can
// have been given: programs inside can set more.
func readMetadata(name string) map[string]string {
	return metadata(
		func(b []byte) (int, error) { return unix.Llistxattr(name, b) },
		func(attr string, b []byte) (int, error) { return unix.Lgetxattr(name, attr, b) })
}

// openMetadata is readMetadata of a file that is open for reading.
func openMetadata(fd int) map[string]string {
	return metadata(
		func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(attr string, b []byte) (int, error) { return unix.Fgetxattr(fd, attr, b) })
}

func metadata(list func([]byte) (int, error), get func(string, []byte) (int, error)) map[string]string {
	size, err := list(nil)
	if err != nil || size <= 0 {
		return nil
	}
	names := make([]byte, min(size+256, 64<<10)) // some may be added meanwhile
	if size, err = list(names); err != nil {
		return nil
	}
	var out map[string]string
	var buf [hutch.MaxMetadataBytes]byte
	room := hutch.MaxMetadataBytes
	for attr := range strings.SplitSeq(string(names[:size]), "\x00") {
		key, ok := strings.CutPrefix(attr, hutch.MetadataPrefix)
		if !ok || !printable(key) {
			continue
		}
		n, err := get(attr, buf[:])
		if err != nil || n < 0 || len(key)+n > room {
			continue
		}
		room -= len(key) + n
		if out == nil {
			out = map[string]string{}
		}
		out[key], _ = lossless(string(buf[:n]))
	}
	return out
}
