package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// maxBuildBody bounds the request of a build: names and numbers.
const maxBuildBody = 1 << 20

// errNoUploads refuses builds whose source would have to be sent here.
var errNoUploads = hutch.Errorf(hutch.CodeUnsupported, "templates are built from images in a registry here: push the image and give image_ref. Dockerfiles and root file systems are not taken")

// minDiskMB is the disk of a template that asks for no more. Clients of the compatible
// API always send size_mb, and mean the image's size by it.
const minDiskMB = 10 << 10

// buildTemplate queues a build and answers at once.
func (a *API) buildTemplate(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	body, err := readBody(w, r, maxBuildBody)
	if err != nil {
		return err
	}
	req, err := decodeBuild(r.Header.Get("Content-Type"), body)
	if err != nil {
		return err
	}
	req.Project = project(r)
	if k := infoOf(r).call; k != nil {
		req.ID = k.ref
	}
	b, err := a.svc.Builds.StartBuild(r.Context(), req)
	if err != nil {
		return err
	}
	w.Header().Set("Location", api.Version+"/templates/builds/"+b.ID)
	return writeJSON(w, http.StatusAccepted, showBuild(b))
}

// decodeBuild reads a build's body: JSON, or a form as published clients send it.
func decodeBuild(contentType string, body []byte) (hutch.BuildRequest, error) {
	typ, params, err := mime.ParseMediaType(contentType)
	var in api.BuildTemplate
	switch {
	case err == nil && typ == "multipart/form-data":
		var form url.Values
		if form, err = multipartFields(body, params["boundary"]); err == nil {
			in, err = buildForm(form)
		}
	case err == nil && typ == "application/x-www-form-urlencoded":
		var form url.Values
		if form, err = url.ParseQuery(string(body)); err != nil {
			return hutch.BuildRequest{}, hutch.Errorf(hutch.CodeBadRequest, "the body is not a valid form")
		}
		in, err = buildForm(form)
	default:
		err = decode(body, &in)
	}
	if err != nil {
		return hutch.BuildRequest{}, err
	}
	return buildRequest(in)
}

// maxFormFields bounds a form; the longest known has nine.
const maxFormFields = 64

// multipartFields reads the fields of a multipart form. A file in it is refused.
func multipartFields(body []byte, boundary string) (url.Values, error) {
	if boundary == "" {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the multipart body has no boundary in its Content-Type")
	}
	out := url.Values{}
	in := multipart.NewReader(bytes.NewReader(body), boundary)
	for range maxFormFields {
		part, err := in.NextPart()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, hutch.Errorf(hutch.CodeBadRequest, "the multipart body is malformed")
		}
		if part.FileName() != "" {
			return nil, errNoUploads
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return nil, hutch.Errorf(hutch.CodeBadRequest, "the multipart body ends early")
		}
		out.Add(part.FormName(), string(value))
	}
	return nil, hutch.Errorf(hutch.CodeBadRequest, "the form has more than %d fields", maxFormFields)
}

// buildForm turns a form into the JSON body's struct: same names, numbers as text.
func buildForm(form url.Values) (api.BuildTemplate, error) {
	var in api.BuildTemplate
	texts := map[string]*string{
		"name": &in.Name, "image_ref": &in.ImageRef, "username": &in.Username, "password": &in.Password,
		"kernel": &in.Kernel, "dockerfile": &in.Dockerfile, "profile": (*string)(&in.Profile),
	}
	counts := map[string]**int{"memory_mb": &in.MemoryMB, "disk_mb": &in.DiskMB, "size_mb": &in.SizeMB}
	known := append(append(keys(texts), keys(counts)...), "cpu", "force")
	for _, name := range keys(form) {
		if len(form[name]) > 1 {
			return in, hutch.FieldErrorf(name, "is given twice")
		}
		value := form.Get(name)
		if dst, ok := texts[name]; ok {
			*dst = value
			continue
		}
		if dst, ok := counts[name]; ok {
			n, err := strconv.Atoi(value)
			if err != nil {
				return in, hutch.FieldErrorf(name, "must be a whole number")
			}
			*dst = &n
			continue
		}
		switch name {
		case "cpu":
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return in, hutch.FieldErrorf(name, "must be a number")
			}
			in.CPU = &f
		case "force":
			on, err := strconv.ParseBool(value)
			if err != nil && value != "" {
				return in, hutch.FieldErrorf(name, "must be true or false")
			}
			in.Force = on
		default:
			return in, unknownName("field", name, known)
		}
	}
	return in, nil
}

func buildRequest(in api.BuildTemplate) (hutch.BuildRequest, error) {
	out := hutch.BuildRequest{Name: in.Name, ImageRef: in.ImageRef, Username: in.Username, Password: in.Password, Profile: in.Profile, Force: in.Force}
	switch {
	case in.Dockerfile != "":
		return out, errNoUploads
	case in.Kernel != "":
		e := hutch.Errorf(hutch.CodeUnsupported, "kernel: sandboxes have no kernel image of their own here; leave it out")
		e.Field = "kernel"
		return out, e
	case in.Name == "":
		return out, hutch.FieldErrorf("name", "is needed: the template's")
	case in.ImageRef == "":
		return out, hutch.FieldErrorf("image_ref", "is needed: an image in a registry, like registry.example/team/image:tag")
	}
	var err error
	if out.Resources, err = resources(api.CreateSandbox{CPU: in.CPU, MemoryMB: in.MemoryMB, DiskMB: in.DiskMB}); err != nil {
		return out, err
	}
	if in.SizeMB != nil {
		if *in.SizeMB < 1 || *in.SizeMB > maxCount {
			return out, hutch.FieldErrorf("size_mb", "must be more than 0")
		}
		if in.DiskMB == nil {
			out.Resources.DiskMB = max(*in.SizeMB, minDiskMB)
		}
	}
	return out, nil
}

func showBuild(b hutch.Build) api.Build {
	return api.Build{
		ID: b.ID, Name: b.Template, Status: string(b.Status), Error: b.Error, StartedAt: milli(b.StartedAt), EndedAt: milli(b.EndedAt),
		SizeMB: (b.SizeBytes + 1<<20 - 1) >> 20, Bytes: b.SizeBytes, Source: b.Source, Step: b.Step,
	}
}

func (a *API) listBuilds(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	list, err := a.svc.Builds.ListBuilds(r.Context(), project(r))
	if err != nil {
		return err
	}
	out := make([]api.Build, 0, len(list))
	for _, b := range list {
		out = append(out, showBuild(b))
	}
	return writeJSON(w, http.StatusOK, out)
}

func (a *API) getBuild(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	b, err := a.svc.Builds.Build(r.Context(), project(r), r.PathValue("build"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showBuild(b))
}

// buildLogs streams a build's log. Each line is the data of an event without a name,
// as it is: published clients show that data to people.
func (a *API) buildLogs(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	from, follow := q.num("from", 0), q.flag("follow", false)
	if err := q.check(); err != nil {
		return err
	}
	if _, err := a.svc.Builds.Build(r.Context(), project(r), r.PathValue("build")); err != nil {
		return err
	}
	out := newEventStream(w, a.cfg.Keepalive)
	defer out.close()
	err := a.svc.Builds.FollowBuild(r.Context(), project(r), r.PathValue("build"), int(min(from, 1<<31-1)), follow, func(l hutch.LogLine) error {
		return out.sendLine("", plainLine(l.Text))
	})
	switch {
	case errors.Is(err, errClientGone):
		return nil
	case err != nil:
		return ignoreGone(out.send(api.EventError, "", errorBody(r, err)))
	}
	return ignoreGone(out.sendLine(api.EventDone, endOfLog))
}

// endOfLog is the data of a log's last event.
const endOfLog = "end"

// plainLine is a line that no client takes for something else: for the end of the log, for
// several lines, or for an object of its own.
func plainLine(s string) string {
	s = strings.Map(func(c rune) rune {
		switch c {
		case '\n', '\r', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
			return ' '
		}
		return c
	}, s)
	trimmed := strings.TrimSpace(s)
	if trimmed == endOfLog || strings.HasPrefix(trimmed, "{") || strings.Contains(s, "event: "+api.EventDone) {
		return fmt.Sprintf("| %s", s)
	}
	return s
}

func (a *API) deleteTemplate(w http.ResponseWriter, r *http.Request) error {
	if err := readNothing(w, r); err != nil {
		return err
	}
	err := a.svc.Builds.DeleteTemplate(r.Context(), r.PathValue("name"))
	if errors.Is(err, hutch.ErrNotFound) && repeated(r) {
		err = nil // an earlier attempt, whose answer was lost, deleted it
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
