package httpapi

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Bounds of a sandbox's labelled ports.
const (
	maxPorts     = 32
	maxPortLabel = 64
	hiddenPort   = 22 // the compatible API's own way in; never shown, never given a label
)

// pathPort reads the port in a path.
func pathPort(r *http.Request) (int, error) {
	n, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || n < 1 || n > 65535 {
		return 0, hutch.FieldErrorf("port", "must be between 1 and 65535")
	}
	return n, nil
}

func showPort(id hutch.SandboxID, port int, labels map[int]string) api.Port {
	out := api.Port{Port: port, Label: labels[port], Source: api.PortDetected, ProxyURL: fmt.Sprintf("%s/sandboxes/%s/proxy/%d/", api.Version, id, port)}
	if out.Label != "" {
		out.Source = api.PortUser
	}
	return out
}

// listPorts lists what listens inside and what has a label. A paused sandbox listens to nothing.
func (a *API) listPorts(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	sb, err := a.alive(r)
	if err != nil {
		return err
	}
	found := make(map[int]api.Port)
	for port := range sb.Access.Ports {
		found[port] = showPort(sb.ID, port, sb.Access.Ports)
	}
	listeners, err := a.listeners(r)
	if err != nil && !errors.Is(err, hutch.ErrInvalidState) {
		return err
	}
	for _, l := range listeners {
		if l.Port == hiddenPort {
			continue
		}
		p := showPort(sb.ID, l.Port, sb.Access.Ports)
		p.Listening, p.Address, p.PID, p.Command = true, l.Address, l.PID, l.Command
		found[l.Port] = p
	}
	out := make([]api.Port, 0, len(found))
	for _, port := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[port])
	}
	return writeJSON(w, http.StatusOK, out)
}

func (a *API) listeners(r *http.Request) ([]hutch.Listener, error) {
	g, done, err := a.guest(r)
	if err != nil {
		return nil, err
	}
	defer done()
	return g.Listeners(r.Context())
}

// setPort gives a port a label. Ports need none to be reached.
func (a *API) setPort(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	in, err := decodePort(body)
	if err != nil {
		return err
	}
	sb, err := a.svc.Settings.UpdateAccess(r.Context(), project(r), sandboxID(r), func(acc *hutch.Access) error {
		if _, ok := acc.Ports[in.Port]; !ok && len(acc.Ports) >= maxPorts {
			return hutch.Errorf(hutch.CodeConflict, "%d ports have labels, which is the most: remove one", maxPorts)
		}
		acc.Ports = maps.Clone(acc.Ports)
		if acc.Ports == nil {
			acc.Ports = make(map[int]string)
		}
		acc.Ports[in.Port] = in.Label
		return nil
	})
	if err != nil {
		return err
	}
	out := showPort(sb.ID, in.Port, sb.Access.Ports)
	listeners, err := a.listeners(r)
	out.Listening = err == nil && slices.ContainsFunc(listeners, func(l hutch.Listener) bool { return l.Port == in.Port })
	return writeJSON(w, http.StatusCreated, out)
}

func decodePort(body []byte) (api.SetPort, error) {
	var in api.SetPort
	if err := decode(body, &in); err != nil {
		return in, err
	}
	if in.Port < 1 || in.Port > 65535 || in.Port == hiddenPort {
		return in, hutch.FieldErrorf("port", "must be between 1 and 65535, and not %d", hiddenPort)
	}
	if in.Label == "" {
		in.Label = "service"
	}
	if len(in.Label) > maxPortLabel || strings.ContainsFunc(in.Label, func(c rune) bool { return c < ' ' }) {
		return in, hutch.FieldErrorf("label", "must be at most %d bytes of printable text", maxPortLabel)
	}
	return in, nil
}

func (a *API) unsetPort(w http.ResponseWriter, r *http.Request) error {
	if err := readNothing(w, r); err != nil {
		return err
	}
	port, err := pathPort(r)
	if err != nil {
		return err
	}
	_, err = a.svc.Settings.UpdateAccess(r.Context(), project(r), sandboxID(r), func(acc *hutch.Access) error {
		if _, ok := acc.Ports[port]; !ok && !repeated(r) {
			return hutch.Errorf(hutch.CodeNotFound, "port %d has no label", port)
		}
		acc.Ports = maps.Clone(acc.Ports)
		delete(acc.Ports, port)
		return nil
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
