package hutch

import (
	"io"
	"time"
)

// FileType says what a path names.
type FileType string

// The types of files.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeSymlink   FileType = "symlink"
	TypeOther     FileType = "other" // a device, a socket, a pipe
)

// Limits of the file calls.
const (
	MaxPathBytes     = 4096     // of a path, as Linux has it
	MaxMetadataBytes = 4096     // of all of a file's metadata together
	MaxMetadataKey   = 246      // bytes of a metadata key: what an extended attribute's name leaves
	DefaultListLimit = 1000     // entries of a page of a listing
	MaxListLimit     = 10_000   // entries a caller may ask for in one page
	MaxListDepth     = 64       // levels below the directory listed
	MaxMatchBytes    = 64 << 10 // of a line that a search delivers
)

// MetadataPrefix is what a metadata key is stored under as an extended attribute: the
// name E2B's clients and tools look for.
const MetadataPrefix = "user.e2b."

// FileInfo is what lstat(2) says of a path, and what a link leads to.
type FileInfo struct {
	Name string `json:"name"` // last element of Path
	// Path is absolute, as it was asked for; links in it are not resolved. In one that is
	// not UTF-8 each byte out of place is shown as U+FFFD, and RawPath is the path.
	Path       string            `json:"path"`
	RawPath    []byte            `json:"raw_path,omitempty"` // nil if Path is exact
	Type       FileType          `json:"type"`
	Size       int64             `json:"size"` // bytes
	Mode       uint32            `json:"mode"` // permission, setuid, setgid and sticky bits: 07777
	UID        uint32            `json:"uid"`
	GID        uint32            `json:"gid"`
	Owner      string            `json:"owner"` // name, or the number if there is none
	Group      string            `json:"group"`
	ModTime    time.Time         `json:"mod_time"`
	LinkTarget string            `json:"link_target,omitempty"` // as the link holds it
	Target     *FileTarget       `json:"target,omitempty"`      // what a link leads to in the end; nil if to nothing
	Metadata   map[string]string `json:"metadata,omitempty"`    // extended attributes below MetadataPrefix
}

// FileTarget is what a symbolic link leads to in the end.
type FileTarget struct {
	Path string   `json:"path"` // absolute, no links left
	Type FileType `json:"type"`
	Mode uint32   `json:"mode"`
}

// FileRef names a file, and in whose name it is asked for.
//
// A path is absolute, or relative to the acting user's home; "~" and "~/…" are that home.
// Every call acts with the user's rights: what User may not do inside fails with
// forbidden, also when a link leads there.
type FileRef struct {
	Path string
	User string // name or uid[:gid]; empty = the template's default
}

// ReadFile asks for a part of a file's bytes.
type ReadFile struct {
	FileRef
	Offset int64 // first byte; behind the end is bad_request
	Length int64 // at most this many bytes; 0 = to the end
}

// FileContent is an open file. Close must be called.
type FileContent struct {
	Info FileInfo // of what the path leads to, links followed; Size is of the whole file
	Body io.ReadCloser
}

// WriteFile puts bytes into a file: the target is the old file or the new one, whatever
// happens meanwhile. It is written beside its place and then renamed over it; a link is
// followed to what it leads to. Parents are made. A full disk is disk_full.
//
// With Upload set, the content may come in parts, over several calls: those that continue
// name the same Path and Upload, and Offset counts bytes of the whole. Bytes below what is
// there already are skipped; a gap is conflict, whose answer says how far the upload is.
// The file appears with the part that has Last set.
type WriteFile struct {
	FileRef
	Content io.Reader // nil = nothing

	Mode     *uint32           // nil = that of the file it replaces, else 0644
	Owner    string            // name or uid; empty = that of the file it replaces, else the acting user; only root may give files away
	Group    string            // name or gid; likewise
	Metadata map[string]string // replaces all metadata
	Excl     bool              // conflict if the path exists

	Upload string // 1 to 64 of [A-Za-z0-9_-]; empty = everything in this one call
	Offset int64  // of Content's first byte; 0 without Upload
	Last   bool   // ends the upload; without Upload every call does
}

// WriteResult is how far a write has come.
type WriteResult struct {
	Info   *FileInfo `json:"info,omitempty"` // nil until the upload is whole
	Offset int64     `json:"offset"`         // bytes of the whole that are there
}

// ListFiles asks for a page of a directory, in the order of the paths, depth first.
type ListFiles struct {
	FileRef
	Depth  int    // levels; 0 = 1
	Cursor string // from the page before; empty = the first
	Limit  int    // 0 = DefaultListLimit
}

// FileList is a page of a directory.
type FileList struct {
	Entries []FileInfo `json:"entries"`
	Next    string     `json:"next,omitempty"` // cursor of the next page; empty on the last
}

// MakeDir makes a directory and its parents. One that exists is conflict unless Exists is
// set; something else in its place is bad_request.
type MakeDir struct {
	FileRef
	Mode   *uint32 // of the directories made; nil = 0755
	Owner  string
	Group  string
	Exists bool // one that exists is fine
}

// MoveFile renames, over what is there as rename(2) does, and across file systems. Parents
// of the destination are made.
type MoveFile struct {
	From, To string
	User     string
	Excl     bool // conflict if To exists
}

// RemoveFile removes what is at a path, links not followed.
type RemoveFile struct {
	FileRef
	Recursive bool // directories with what is in them; else a full one is conflict
	Missing   bool // nothing there is fine; else not_found
}

// SearchFiles looks below a directory, for names, for lines, or for both.
type SearchFiles struct {
	FileRef
	Name       string // pattern of path.Match on the last element; empty = every file
	Text       string // regular expression (RE2) that a line must match; empty = files, not lines
	Hidden     bool   // also names that begin with a dot
	Limit      int    // most matches; 0 = DefaultListLimit
	IgnoreCase bool   // for Text
}

// FileMatch is one find of a search.
type FileMatch struct {
	Path    string   `json:"path"`
	RawPath []byte   `json:"raw_path,omitempty"` // as in FileInfo
	Type    FileType `json:"type"`
	Line    int      `json:"line,omitempty"`   // from 1; 0 when names were looked for
	Column  int      `json:"column,omitempty"` // bytes, from 1: where the match begins
	Text    string   `json:"text,omitempty"`   // the line, cut at MaxMatchBytes; bytes that are not UTF-8 are U+FFFD
}

// SearchResult ends a search.
type SearchResult struct {
	Truncated bool // there is more than Limit
	Skipped   int  // files and directories that could not be read
}

// ReadArchive asks for a tree as a tar stream, names relative to Path.
type ReadArchive struct {
	FileRef
	Gzip    bool
	Exclude []string // patterns of path.Match, on the relative path or its last element
}

// WriteArchive unpacks a tar stream, plain or gzip, below Path. Names that lead out of Path,
// by ".." or by a link, are refused before anything of theirs is written.
type WriteArchive struct {
	FileRef
	Content   io.Reader
	KeepOwner bool // owners as the archive has them (root only); else the acting user's
}

// ArchiveResult says what was unpacked.
type ArchiveResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Skipped are entries that cannot be files here (devices), with why; at most 100.
	Skipped []string `json:"skipped,omitempty"`
}

// FileOp says what happened to a watched file.
type FileOp string

// What can happen to a file.
const (
	OpCreate   FileOp = "create"
	OpWrite    FileOp = "write"
	OpRemove   FileOp = "remove"
	OpRename   FileOp = "rename" // the name it had; the new one comes as a create
	OpChmod    FileOp = "chmod"
	OpOverflow FileOp = "overflow" // events were lost: look anew
)

// WatchFiles asks what happens in a directory from now on.
type WatchFiles struct {
	FileRef
	Recursive bool // also below, in directories made later too
	Entry     bool // with what stat says, for create, write and chmod
}

// FileEvent is one thing that happened.
type FileEvent struct {
	Op      FileOp    `json:"op"`
	Name    string    `json:"name"`               // relative to the directory watched
	RawName []byte    `json:"raw_name,omitempty"` // as RawPath in FileInfo
	Entry   *FileInfo `json:"entry,omitempty"`
}
