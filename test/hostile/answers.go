package main

import (
	"archive/tar"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// greeted answers what the node asks before anything else, as a good agent does.
func greeted(w http.ResponseWriter, r *http.Request) bool {
	switch r.URL.Path {
	case guestapi.PathHello:
		_ = json.NewEncoder(w).Encode(guestapi.HelloReply{Protocol: guestapi.ProtocolVersion, Version: mark})
	case guestapi.PathHealth:
		_ = json.NewEncoder(w).Encode(guestapi.Health{Time: time.Now().UnixNano()})
	default:
		return false
	}
	return true
}

// silent answers nothing but that it is well.
func silent(w http.ResponseWriter, r *http.Request) {
	if !greeted(w, r) {
		<-r.Context().Done()
	}
}

// endless says more than anybody asked for, in the shape of a lawful answer.
func endless(w http.ResponseWriter, r *http.Request) {
	if greeted(w, r) {
		return
	}
	go func() { _, _ = io.Copy(io.Discard, r.Body) }()
	switch {
	case strings.HasSuffix(r.URL.Path, "/follow"):
		for at := int64(0); ; at += 64 << 10 {
			if guestapi.WriteFrame(w, guestapi.Frame{Type: guestapi.FrameStdout, Offset: at, Payload: make([]byte, 64<<10)}) != nil {
				return
			}
		}
	case r.URL.Path == guestapi.PathExec && r.Method == http.MethodPost:
		running(w, r)
	default:
		_, _ = io.WriteString(w, `{"execs":[`)
		item := []byte(strings.Repeat(`{"id":"`+mark+`"},`, 1000))
		for {
			if _, err := w.Write(item); err != nil {
				return
			}
		}
	}
}

// running says of a command that it has started.
func running(w http.ResponseWriter, r *http.Request) {
	var s guestapi.StartExec
	_ = json.NewDecoder(r.Body).Decode(&s)
	_ = json.NewEncoder(w).Encode(guestapi.ExecStatus{ID: s.ID, PID: 7, Running: true, StartedAt: time.Now().UnixNano()})
}

// slow says one byte at a time.
func slow(w http.ResponseWriter, r *http.Request) {
	if greeted(w, r) {
		return
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		if _, err := w.Write([]byte{`{"`[min(i, 1)]}); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
	}
}

// lies answers at once, and wrongly.
func lies(w http.ResponseWriter, r *http.Request) {
	if greeted(w, r) {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	switch {
	case r.URL.Path == guestapi.PathExec && r.Method == http.MethodPost:
		_, _ = fmt.Fprintf(w, `{"id":"eaaaaaaaaaaaaaaaaaaaa","pid":-1,"running":true,"result":{"end":"sandbox_gone","exit_code":999,"detail":%q}}`, mark)
	case r.URL.Path == guestapi.PathExec:
		_, _ = fmt.Fprintf(w, `{"execs":[{"id":"../../%s","running":true},{"id":"eaaaaaaaaaaaaaaaaaaaa","running":true,"tag":%q}]}`, mark, mark)
	default:
		_, _ = fmt.Fprintf(w, `{"files":[{"name":"../%s","path":"/../%s","size":-1}],"processes":[{"pid":-1,"command":"\u001b[2J%s"}],"used":-1,"total":1e99,"offset":-5}`, mark, mark, mark)
	}
}

// lengths announces other lengths than come.
func lengths(w http.ResponseWriter, r *http.Request) {
	if greeted(w, r) {
		return
	}
	switch r.ContentLength % 3 {
	case 0:
		w.Header().Set("Content-Length", "9223372036854775807")
	case 1:
		w.Header().Set("Content-Length", "100000000")
	default:
		w.Header().Set("Content-Length", "1")
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(http.StatusOK)
	var head [13]byte
	head[0] = 1
	binary.BigEndian.PutUint32(head[1:], 0xffffffff)
	_, _ = w.Write(head[:])
	if http.NewResponseController(w).Flush() == nil {
		<-r.Context().Done()
	}
}

// trailers has a short answer and headers after it that do not end.
func trailers(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Big", strings.Repeat(mark, 3000))
	w.Header().Set("Trailer", "X")
	if greeted(w, r) {
		return
	}
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, "{}")
	for i := range 20000 {
		w.Header().Set(fmt.Sprintf("%sX%d", http.TrailerPrefix, i), strings.Repeat(mark, 100))
	}
}

// refuses refuses with every code there is, also those that are not a guest's to give.
func refuses(w http.ResponseWriter, r *http.Request) {
	if greeted(w, r) {
		return
	}
	codes := []hutch.Code{hutch.CodeSandboxGone, hutch.CodeUnauthenticated, hutch.CodeInternal, hutch.CodeStale, hutch.CodeDiskFull, guestapi.CodeNotIdentified, mark}
	status := []int{200, 204, 302, 400, 401, 404, 500, 503, 599}
	n := len(r.URL.Path)
	w.Header().Set("Location", "http://127.0.0.1/"+mark)
	w.WriteHeader(status[n%len(status)])
	_ = json.NewEncoder(w).Encode(guestapi.Error{Error: mark + "\n\x1b[2J level=ERROR", Code: codes[n%len(codes)], Field: mark})
}

// talks starts whatever it is told to, tells of output that never comes to an end, and gives
// file frames without end.
func talks(w http.ResponseWriter, r *http.Request) {
	if greeted(w, r) {
		return
	}
	switch {
	case r.URL.Path == guestapi.PathExec && r.Method == http.MethodPost:
		running(w, r)
	case strings.HasSuffix(r.URL.Path, "/follow"):
		for at := int64(0); ; at += 7 {
			if guestapi.WriteFrame(w, guestapi.Frame{Type: guestapi.FrameType(1 + at%2), Offset: at / 2, Payload: []byte(mark)}) != nil {
				return
			}
			if guestapi.WriteFrame(w, guestapi.Frame{Type: guestapi.FrameKeepalive}) != nil {
				return
			}
		}
	default:
		fileFrames(w, func(frame func(guestapi.FileFrameType, []byte) bool) {
			for frame(guestapi.FileData, []byte(mark)) && frame(guestapi.FileItem, []byte(`{"name":"`+mark+`"}`)) {
			}
		})
	}
}

// fileFrames answers a call about files with what say says, after a lawful head.
func fileFrames(w io.Writer, say func(frame func(kind guestapi.FileFrameType, p []byte) bool)) {
	frame := func(kind guestapi.FileFrameType, p []byte) bool {
		b := append(make([]byte, guestapi.FileFrameHeader, guestapi.FileFrameHeader+len(p)), p...)
		guestapi.PutFileFrame(b, kind)
		_, err := w.Write(b)
		return err == nil
	}
	head, err := guestapi.FileFrameJSON(guestapi.FileHead, hutch.FileInfo{Name: "tree", Path: "/srv/tree", Type: hutch.TypeDirectory, Mode: 0o755, Owner: "root", Group: "root"})
	if err != nil {
		return
	}
	if _, err := w.Write(head); err == nil {
		say(frame)
	}
}

// archives packs what leaves the directory it is unpacked into.
func archives(w http.ResponseWriter, r *http.Request) {
	if greeted(w, r) {
		return
	}
	if r.URL.Path != guestapi.PathFileArchive {
		_ = json.NewEncoder(w).Encode(hutch.FileInfo{Name: "tree", Path: "/srv/tree", Type: hutch.TypeDirectory, Mode: 0o755, Owner: "root", Group: "root"})
		return
	}
	var packed strings.Builder
	t := tar.NewWriter(&packed)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeReg, Name: "../" + mark},
		{Typeflag: tar.TypeReg, Name: "/tmp/" + mark},
		{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/tmp"},
		{Typeflag: tar.TypeReg, Name: "l/" + mark},
		{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"},
		{Typeflag: tar.TypeReg, Name: "h"},
		{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 8},
		{Typeflag: tar.TypeReg, Name: "x/../../../../../../tmp/" + mark},
	} {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(mark))
		}
		h.Mode = 0o4777
		if t.WriteHeader(&h) == nil && h.Typeflag == tar.TypeReg {
			_, _ = t.Write([]byte(mark))
		}
	}
	_ = t.Close()
	fileFrames(w, func(frame func(guestapi.FileFrameType, []byte) bool) {
		_ = frame(guestapi.FileData, []byte(packed.String())) && frame(guestapi.FileFinal, []byte("{}"))
	})
}
