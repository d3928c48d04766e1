package storetest

import (
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var templateChecks = map[string]check{
	"every field of a template is kept": templateRoundTrip,
	"a template is replaced by name":    templateReplaced,
	"templates come by name":            templatesByName,
	"a missing template is not found":   missingTemplate,
	"a deleted template is gone":        templateDeleted,
}

func putTemplate(t *testing.T, s store.Store, tpl hutch.Template) {
	t.Helper()
	if err := s.PutTemplate(t.Context(), tpl); err != nil {
		t.Fatalf("PutTemplate: %v", err)
	}
}

func templateRoundTrip(t *testing.T, s store.Store) {
	for _, want := range []hutch.Template{filled[hutch.Template](t), {Name: "zero"}} {
		putTemplate(t, s, want)
		got, err := s.Template(t.Context(), want.Name)
		if err != nil {
			t.Fatalf("Template: %v", err)
		}
		wantEqual(t, "the record", got, want)
	}
}

func templateReplaced(t *testing.T, s store.Store) {
	putTemplate(t, s, filled[hutch.Template](t))
	want := hutch.Template{Name: filled[hutch.Template](t).Name, BuildID: "b2"}
	putTemplate(t, s, want)
	list, err := s.Templates(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("Templates: %d, %v; want one", len(list), err)
	}
	wantEqual(t, "the record", list[0], want)
}

func templatesByName(t *testing.T, s store.Store) {
	for _, n := range []string{"python", "base", "node", "Zed", "ärger"} {
		putTemplate(t, s, hutch.Template{Name: n})
	}
	list, err := s.Templates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range list {
		got = append(got, x.Name)
	}
	wantEqual(t, "names", got, []string{"Zed", "base", "node", "python", "ärger"}) // by bytes
}

func missingTemplate(t *testing.T, s store.Store) {
	_, err := s.Template(t.Context(), "none")
	wantErr(t, "Template", err, hutch.ErrNotFound)
	wantErr(t, "DeleteTemplate", s.DeleteTemplate(t.Context(), "none"), hutch.ErrNotFound)
}

func templateDeleted(t *testing.T, s store.Store) {
	putTemplate(t, s, hutch.Template{Name: "a"})
	putTemplate(t, s, hutch.Template{Name: "b"})
	if err := s.DeleteTemplate(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Template(t.Context(), "a")
	wantErr(t, "Template", err, hutch.ErrNotFound)
	wantErr(t, "DeleteTemplate again", s.DeleteTemplate(t.Context(), "a"), hutch.ErrNotFound)
	if _, err := s.Template(t.Context(), "b"); err != nil {
		t.Errorf("another template went too: %v", err)
	}
}
