package guestclient

import (
	"context"
	"net/http"
	"net/url"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

type shellList struct{ capped[hutch.Shell] }

// UnmarshalJSON implements json.Unmarshaler.
func (l *shellList) UnmarshalJSON(b []byte) error { return l.decode(b, maxShells) }

// ListShells lists the shell sessions.
func (c *Client) ListShells(ctx context.Context) ([]hutch.Shell, error) {
	var w struct{ Shells shellList }
	err := c.call(ctx, request{op: "list shells", method: http.MethodGet, path: guestapi.PathShells, limit: guestapi.MaxBody / 64, repeat: true}, &w)
	if err != nil {
		return nil, err
	}
	list := make([]hutch.Shell, 0, len(w.Shells.capped))
	for _, s := range w.Shells.capped {
		if !shellName.MatchString(s.Name) || s.PID < 0 || s.Commands < 0 {
			return nil, nonsense("list shells: a session that cannot be")
		}
		if !execID.MatchString(string(s.Exec)) {
			s.Exec = ""
		}
		s.User, s.Cwd = cleanText(s.User, maxCommand), cleanPath(s.Cwd)
		s.StartedAt = cleanTime(s.StartedAt)
		list = append(list, s)
	}
	return list, nil
}

// CloseShell ends a shell session with everything that runs in it.
func (c *Client) CloseShell(ctx context.Context, name string) error {
	return c.call(ctx, request{op: "close shell", method: http.MethodDelete, path: guestapi.PathShells + "/" + url.PathEscape(name), limit: smallBody, repeat: true}, nil)
}
