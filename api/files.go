package api

import (
	"time"

	"hutch.dev/hutch"
)

// HeaderMetadata begins the headers of an upload that set the file's metadata: what
// follows it, in lower case, is a key.
const HeaderMetadata = "X-Metadata-"

// Headers of a download.
const (
	HeaderFileMode  = "X-File-Mode"  // permissions of the file, in octal
	HeaderFileOwner = "X-File-Owner" // owner and group, "root:root"
)

// File is what a path names. The first five fields are what clients of the compatible
// API read, and all there is unless ?details=1 is asked for.
type File struct {
	Name  string `json:"name"`
	IsDir bool   `json:"is_dir"` // never of a link, wherever it leads
	Size  int64  `json:"size"`   // bytes
	Mode  string `json:"mode"`   // one letter: f file, d directory, l link, o anything else
	MTime int64  `json:"mtime"`  // seconds since 1970

	Path        string            `json:"path,omitempty"`     // absolute; links in it are not resolved
	RawPath     []byte            `json:"raw_path,omitempty"` // the path's bytes, when they are not UTF-8
	Type        hutch.FileType    `json:"type,omitempty"`
	Permissions string            `json:"permissions,omitempty"` // octal, with setuid, setgid and sticky bits: "0644"
	UID         *uint32           `json:"uid,omitempty"`
	GID         *uint32           `json:"gid,omitempty"`
	Owner       string            `json:"owner,omitempty"` // name, or the number if there is none
	Group       string            `json:"group,omitempty"`
	ModifiedAt  time.Time         `json:"modified_at,omitzero"`
	LinkTarget  string            `json:"link_target,omitempty"` // as the link holds it
	Target      *FileTarget       `json:"target,omitempty"`      // what a link leads to in the end; absent if to nothing
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// FileTarget is what a link leads to in the end.
type FileTarget struct {
	Path        string         `json:"path"`
	Type        hutch.FileType `json:"type"`
	Permissions string         `json:"permissions"`
}

// Directory is the answer of GET …/fs/dir.
type Directory struct {
	Path    string `json:"path"`
	Entries []File `json:"entries"`        // in the order of their paths, depth first
	Next    string `json:"next,omitempty"` // cursor of the next page; only when pages were asked for
}

// Written is the answer of PUT …/fs.
type Written struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"` // of the whole that are there
	// Complete says whether the file is in its place. Only in the answer to a part of an upload.
	Complete *bool `json:"complete,omitempty"`
	File     *File `json:"file,omitempty"` // with ?details=1, once it is in its place
}

// MakeDirectory is the body of POST …/fs/mkdir. Parents are made too.
type MakeDirectory struct {
	Path   string `json:"path"`
	User   string `json:"user,omitempty"`
	Mode   string `json:"mode,omitempty"` // octal, of the directories made; "0755" when left out
	Owner  string `json:"owner,omitempty"`
	Group  string `json:"group,omitempty"`
	Exists bool   `json:"exists,omitempty"` // one that exists is fine; else it is 409 conflict
}

// MoveFile is the body of POST …/fs/move.
type MoveFile struct {
	From string `json:"from"`
	To   string `json:"to"`
	User string `json:"user,omitempty"`
	Excl bool   `json:"excl,omitempty"` // 409 conflict if there is something at To; else it is replaced
}

// FileMatch is one find of a search.
type FileMatch struct {
	Path    string         `json:"path"`
	RawPath []byte         `json:"raw_path,omitempty"` // the path's bytes, when they are not UTF-8
	Type    hutch.FileType `json:"type"`
	Line    int            `json:"line,omitempty"`   // from 1; absent when names were looked for
	Column  int            `json:"column,omitempty"` // in bytes, from 1: where the match begins
	Text    string         `json:"text,omitempty"`   // the line
}

// SearchEnd ends a search: the "end" event, or part of [FileMatches].
type SearchEnd struct {
	Truncated bool `json:"truncated"` // there is more than the limit
	Skipped   int  `json:"skipped"`   // files and directories that could not be read
}

// FileMatches is the answer of GET …/fs/search.
type FileMatches struct {
	Matches []FileMatch `json:"matches"`
	SearchEnd
}

// Names of the events of a search and of a watch. Either ends with "error" if it fails.
const (
	EventMatch  = "match"  // FileMatch
	EventEnd    = "end"    // SearchEnd; the last event of a search
	EventReady  = "ready"  // WatchReady; what happens from now on is told
	EventChange = "change" // FileChange
)

// WatchReady is the first event of a watch.
type WatchReady struct {
	Path string `json:"path"`
}

// FileChange is one thing that happened in a watched directory.
type FileChange struct {
	Op      hutch.FileOp `json:"op"`
	Name    string       `json:"name"`               // relative to the directory watched
	RawName []byte       `json:"raw_name,omitempty"` // the name's bytes, when they are not UTF-8
	File    *File        `json:"file,omitempty"`     // with entry=1, of what is there
}

// CreateWatcher is the body of POST …/fs/watchers.
type CreateWatcher struct {
	Path      string `json:"path"`
	User      string `json:"user,omitempty"`
	Recursive bool   `json:"recursive,omitempty"`
	Entry     bool   `json:"entry,omitempty"` // with what stat says
}

// Watcher is a watch that is asked for its news. Nobody asking for a minute ends it.
type Watcher struct {
	WatcherID string          `json:"watcher_id"`
	SandboxID hutch.SandboxID `json:"sandbox_id"`
	Path      string          `json:"path"`
}

// Changes is what a watcher has seen. Cursor asks for what comes after it.
type Changes struct {
	Changes []FileChange `json:"changes"`
	Cursor  int64        `json:"cursor"`
}

// Unpacked is the answer of PUT …/fs/archive.
type Unpacked struct {
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped"` // entries that cannot be files here, with why; at most 100
}
