package guest

import (
	"net/http"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/ports"
	"hutch.dev/hutch/internal/guest/procfs"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/duplex"
)

func (a *Agent) connectPort(w http.ResponseWriter, r *http.Request) {
	select {
	case a.portConns <- struct{}{}:
		defer func() { <-a.portConns }()
	default:
		writeError(w, hutch.Errorf(hutch.CodeUnavailable, "the sandbox has %d connections to its ports already", guestapi.MaxPortConns))
		return
	}
	port, err := pathNumber(r, "port")
	if err != nil {
		writeError(w, err)
		return
	}
	server, err := ports.Dial(r.Context(), port)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	flush := http.NewResponseController(w).Flush
	if err := flush(); err != nil {
		_ = server.Close() // the caller left
		return
	}
	peer := duplex.New(r.Body, func(frame []byte) error {
		if _, err := w.Write(frame); err != nil {
			return err
		}
		return flush()
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = peer.Run() // how it ended is in what peer's reads say
	}()
	ports.Splice(peer, server)
	_ = r.Body.Close() // what still comes is for nobody
	<-done
}

func (a *Agent) getPorts(*http.Request) (any, error) {
	l, err := ports.List(procfs.FS{Root: a.cfg.Proc})
	if err != nil {
		return nil, err
	}
	return guestapi.Listeners{Listeners: l}, nil
}

func (a *Agent) getDisk(*http.Request) (any, error) {
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil {
		return nil, hutch.Wrap(hutch.CodeInternal, err, "the disk cannot be measured")
	}
	block := int64(st.Bsize) //nolint:unconvert // its type depends on the machine
	return hutch.DiskUsage{Used: int64(st.Blocks-st.Bfree) * block, Total: int64(st.Blocks) * block}, nil
}
