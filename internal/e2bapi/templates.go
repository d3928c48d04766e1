package e2bapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"hutch.dev/hutch"
)

// defaultTag is the tag of a build that nobody named: templates have no others here.
const defaultTag = ":default"

// templateName is a template's name without the tag that every template has.
func templateName(s string) string { return strings.TrimSuffix(s, defaultTag) }

// template finds the template that a client names.
func (a *API) template(ctx context.Context, name string) (hutch.Template, error) {
	if name == "" {
		return hutch.Template{}, hutch.FieldErrorf("templateID", "is missing: name the template to start from")
	}
	t, err := a.svc.Templates.Template(ctx, templateName(name))
	if errors.Is(err, hutch.ErrNotFound) || errors.Is(err, hutch.ErrBadRequest) {
		return t, hutch.Errorf(hutch.CodeNotFound, "template '%.200s' not found", name)
	}
	return t, err
}

// templateView is a template in a list.
type templateView struct {
	TemplateID    string   `json:"templateID"`
	BuildID       string   `json:"buildID"`
	CPUCount      int      `json:"cpuCount"`
	MemoryMB      int      `json:"memoryMB"`
	DiskSizeMB    int      `json:"diskSizeMB"`
	Public        bool     `json:"public"`
	Aliases       []string `json:"aliases"`
	Names         []string `json:"names"`
	CreatedAt     string   `json:"createdAt"`
	UpdatedAt     string   `json:"updatedAt"`
	CreatedBy     *string  `json:"createdBy"`     // not recorded: null
	LastSpawnedAt *string  `json:"lastSpawnedAt"` // not recorded: null
	SpawnCount    int      `json:"spawnCount"`
	BuildCount    int      `json:"buildCount"`
	EnvdVersion   string   `json:"envdVersion"`
	BuildStatus   string   `json:"buildStatus"`
}

// buildView is one build of a template.
type buildView struct {
	BuildID     string `json:"buildID"`
	Status      string `json:"status"`
	CreatedAt   string `json:"createdAt"`
	UpdatedAt   string `json:"updatedAt"`
	FinishedAt  string `json:"finishedAt"`
	CPUCount    int    `json:"cpuCount"`
	MemoryMB    int    `json:"memoryMB"`
	DiskSizeMB  int    `json:"diskSizeMB"`
	EnvdVersion string `json:"envdVersion"`
}

const buildReady = "ready"

func showTemplate(t hutch.Template) templateView {
	names := append([]string{t.Name}, t.Aliases...)
	return templateView{
		TemplateID: t.Name, BuildID: t.BuildID, CPUCount: t.Resources.CPUs(), MemoryMB: t.Resources.MemoryMB,
		DiskSizeMB: t.Resources.DiskMB, Public: true, Aliases: names, Names: names,
		CreatedAt: showTime(t.CreatedAt), UpdatedAt: showTime(t.CreatedAt), BuildCount: 1,
		EnvdVersion: AgentVersion, BuildStatus: buildReady,
	}
}

func (a *API) listTemplates(w http.ResponseWriter, c call) error {
	all, err := a.svc.Templates.ListTemplates(c.Context())
	if err != nil {
		return err
	}
	out := make([]templateView, 0, len(all))
	for _, t := range all {
		out = append(out, showTemplate(t))
	}
	return ok(w, http.StatusOK, out)
}

// templatePart serves /templates/aliases/{name} and /templates/{name}/tags, which no pattern
// tells apart.
func (a *API) templatePart(w http.ResponseWriter, c call) error {
	name, part := c.PathValue("name"), c.PathValue("part")
	switch {
	case name == "aliases":
		return a.templateExists(w, c, part)
	case part == "tags":
		return a.templateTags(w, c, name)
	}
	return hutch.Errorf(hutch.CodeNotFound, "there is no call %s %.200s in this API", c.Method, c.URL.Path)
}

// templateExists answers whether sandboxes can be made from a name.
func (a *API) templateExists(w http.ResponseWriter, c call, name string) error {
	t, err := a.template(c.Context(), name)
	if err != nil {
		return err
	}
	return ok(w, http.StatusOK, map[string]any{"templateID": t.Name, "public": true})
}

func (a *API) templateInfo(w http.ResponseWriter, c call) error {
	t, err := a.template(c.Context(), c.PathValue("name"))
	if err != nil {
		return err
	}
	v := showTemplate(t)
	return ok(w, http.StatusOK, map[string]any{
		"templateID": v.TemplateID, "public": v.Public, "aliases": v.Aliases, "names": v.Names,
		"createdAt": v.CreatedAt, "updatedAt": v.UpdatedAt, "lastSpawnedAt": nil, "spawnCount": 0,
		"builds": []buildView{{
			BuildID: v.BuildID, Status: buildReady, CreatedAt: v.CreatedAt, UpdatedAt: v.UpdatedAt, FinishedAt: v.UpdatedAt,
			CPUCount: v.CPUCount, MemoryMB: v.MemoryMB, DiskSizeMB: v.DiskSizeMB, EnvdVersion: AgentVersion,
		}},
	})
}

func (a *API) templateTags(w http.ResponseWriter, c call, name string) error {
	t, err := a.template(c.Context(), name)
	if err != nil {
		return err
	}
	return ok(w, http.StatusOK, []map[string]string{{"tag": "default", "buildID": t.BuildID, "createdAt": showTime(t.CreatedAt)}})
}

// deleteTemplate is also how clients delete a snapshot, of which there are none: that needs
// no more than other calls.
func (a *API) deleteTemplate(w http.ResponseWriter, c call) error {
	t, err := a.template(c.Context(), c.PathValue("name"))
	if err != nil {
		return err
	}
	if err := allowed(c.key, hutch.ScopeAdmin); err != nil {
		return err
	}
	if err := a.svc.Templates.DeleteTemplate(c.Context(), t.Name); err != nil {
		return err
	}
	return noContent(w)
}
