package guestapi

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"

	"hutch.dev/hutch"
)

// The calls of the file service.
//
//	POST /v1/fs/stat     FileRef                  → hutch.FileInfo
//	POST /v1/fs/list     ListFiles                → hutch.FileList
//	POST /v1/fs/mkdir    MakeDir                  → hutch.FileInfo
//	POST /v1/fs/move     MoveFile                 → hutch.FileInfo
//	POST /v1/fs/remove   RemoveFile               → {}
//	POST /v1/fs/read     ReadFile                 → file frames: head (hutch.FileInfo), data…, end
//	POST /v1/fs/search   SearchFiles              → file frames: item (hutch.FileMatch)…, end (hutch.SearchResult)
//	POST /v1/fs/archive  ReadArchive              → file frames: head (hutch.FileInfo), data…, end
//	POST /v1/fs/watch    WatchFiles               → file frames: head ({}) once armed, item (hutch.FileEvent)…, end
//	POST /v1/fs/write    head (WriteFile), then the content as it is   → WriteReply
//	POST /v1/fs/unpack   head (WriteArchive), then the archive as it is → hutch.ArchiveResult
//
// An answer in frames that has no end frame was cut short. A request whose content is cut
// short is one that HTTP/2 resets; its end is the end of the request.
const (
	PathFiles       = "/v1/fs/"
	PathFileStat    = PathFiles + "stat"
	PathFileList    = PathFiles + "list"
	PathFileMkdir   = PathFiles + "mkdir"
	PathFileMove    = PathFiles + "move"
	PathFileRemove  = PathFiles + "remove"
	PathFileRead    = PathFiles + "read"
	PathFileSearch  = PathFiles + "search"
	PathFileArchive = PathFiles + "archive"
	PathFileWatch   = PathFiles + "watch"
	PathFileWrite   = PathFiles + "write"
	PathFileUnpack  = PathFiles + "unpack"
)

// FileRef is a hutch.FileRef on the wire. A path that is not UTF-8, which JSON cannot
// carry, is in RawPath and not in Path.
type FileRef struct {
	Path    string `json:"path,omitempty"`
	RawPath []byte `json:"raw_path,omitempty"`
	User    string `json:"user,omitempty"`
}

// RefOf puts a reference on the wire.
func RefOf(f hutch.FileRef) FileRef {
	if utf8.ValidString(f.Path) {
		return FileRef{Path: f.Path, User: f.User}
	}
	return FileRef{RawPath: []byte(f.Path), User: f.User}
}

// Name takes the path off the wire.
func (f FileRef) Name() string {
	if len(f.RawPath) > 0 {
		return string(f.RawPath)
	}
	return f.Path
}

// Asker is in whose name the call is made.
func (f FileRef) Asker() string { return f.User }

// ReadFile is a hutch.ReadFile.
type ReadFile struct {
	FileRef
	Offset int64 `json:"offset,omitempty"`
	Length int64 `json:"length,omitempty"`
}

// WriteFile is a hutch.WriteFile without its content.
type WriteFile struct {
	FileRef
	Mode     *uint32           `json:"mode,omitempty"`
	Owner    string            `json:"owner,omitempty"`
	Group    string            `json:"group,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Excl     bool              `json:"excl,omitempty"`
	Upload   string            `json:"upload,omitempty"`
	Offset   int64             `json:"offset,omitempty"`
	Last     bool              `json:"last,omitempty"`
}

// WriteReply is a hutch.WriteResult. With Gap set nothing was written, because the part
// begins behind Offset, the end of the upload so far.
type WriteReply struct {
	hutch.WriteResult
	Gap bool `json:"gap,omitempty"`
}

// ListFiles is a hutch.ListFiles.
type ListFiles struct {
	FileRef
	Depth  int    `json:"depth,omitempty"`
	Cursor string `json:"cursor,omitempty"`
	Limit  int    `json:"limit,omitempty"`
}

// MakeDir is a hutch.MakeDir.
type MakeDir struct {
	FileRef
	Mode   *uint32 `json:"mode,omitempty"`
	Owner  string  `json:"owner,omitempty"`
	Group  string  `json:"group,omitempty"`
	Exists bool    `json:"exists,omitempty"`
}

// MoveFile is a hutch.MoveFile. The user is that of the source.
type MoveFile struct {
	From FileRef `json:"from"`
	To   FileRef `json:"to"`
	Excl bool    `json:"excl,omitempty"`
}

// RemoveFile is a hutch.RemoveFile.
type RemoveFile struct {
	FileRef
	Recursive bool `json:"recursive,omitempty"`
	Missing   bool `json:"missing,omitempty"`
}

// SearchFiles is a hutch.SearchFiles.
type SearchFiles struct {
	FileRef
	Name       string `json:"name,omitempty"`
	Text       string `json:"text,omitempty"`
	Hidden     bool   `json:"hidden,omitempty"`
	Limit      int    `json:"limit,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
}

// ReadArchive is a hutch.ReadArchive.
type ReadArchive struct {
	FileRef
	Gzip    bool     `json:"gzip,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
}

// WriteArchive is a hutch.WriteArchive without its content.
type WriteArchive struct {
	FileRef
	KeepOwner bool `json:"keep_owner,omitempty"`
}

// WatchFiles is a hutch.WatchFiles.
type WatchFiles struct {
	FileRef
	Recursive bool `json:"recursive,omitempty"`
	Entry     bool `json:"entry,omitempty"`
}

// FileEnd is the payload of an end frame: how it ended, and what was found on the way.
type FileEnd struct {
	Error  *Error              `json:"error,omitempty"` // nil = to its end
	Search *hutch.SearchResult `json:"search,omitempty"`
}

// FileFrameType says what a frame of the file service holds.
type FileFrameType uint8

// The frame types of the file service.
const (
	FileHead  FileFrameType = 1 // JSON; the first frame, of a request or an answer
	FileData  FileFrameType = 2 // bytes of the content
	FileItem  FileFrameType = 3 // JSON: one match, one event
	FileFinal FileFrameType = 4 // JSON FileEnd; the last frame of an answer
)

// Bounds of these frames. A JSON one holds a line of hutch.MaxMatchBytes, of which JSON may
// make six times as many bytes, and a path or two.
const (
	MaxFileData = 256 << 10
	MaxFileJSON = 512 << 10
)

// FileFrameHeader is the length of what is before a frame's payload: its type (1 byte) and
// the payload's length (4 bytes, big endian).
const FileFrameHeader = 1 + 4

// PutFileFrame fills in the header of a frame that lies in b, header and payload.
func PutFileFrame(b []byte, t FileFrameType) {
	b[0] = byte(t)
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-FileFrameHeader))
}

// FileFrameJSON is a whole frame with v as its payload.
func FileFrameJSON(t FileFrameType, v any) ([]byte, error) {
	p, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(p) > MaxFileJSON {
		return nil, fmt.Errorf("%w: type %d, %d bytes", ErrFrame, t, len(p))
	}
	b := append(make([]byte, FileFrameHeader, FileFrameHeader+len(p)), p...)
	PutFileFrame(b, t)
	return b, nil
}

// ReadFileFrameHeader reads what is before a frame's payload, and holds the length to the
// bound of the type. A clean end is io.EOF, a malformed header ErrFrame.
func ReadFileFrameHeader(r io.Reader) (FileFrameType, int, error) {
	var h [FileFrameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, 0, err
	}
	t, n := FileFrameType(h[0]), binary.BigEndian.Uint32(h[1:])
	limit := uint32(MaxFileJSON)
	if t == FileData {
		limit = MaxFileData
	}
	if t < FileHead || t > FileFinal || n > limit {
		return 0, 0, fmt.Errorf("%w: type %d, %d bytes", ErrFrame, t, n)
	}
	return t, int(n), nil
}

// ReadFileHead reads the head frame of a request into v and leaves what follows unread.
func ReadFileHead(r io.Reader, v any) error {
	t, n, err := ReadFileFrameHeader(r)
	if err != nil {
		return err
	}
	if t != FileHead {
		return fmt.Errorf("%w: type %d in place of the head", ErrFrame, t)
	}
	p := make([]byte, n)
	if _, err := io.ReadFull(r, p); err != nil {
		return err
	}
	return json.Unmarshal(p, v)
}
