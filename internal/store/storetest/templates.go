package storetest

import (
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var templateChecks = map[string]check{
	"every field of a template is kept":  templateRoundTrip,
	"a template is replaced by name":     templateReplaced,
	"templates come by name":             templatesByName,
	"a missing template is not found":    missingTemplate,
	"a deleted template is gone":         templateDeleted,
	"a template is found by its aliases": aliasFinds,
	"two templates share no name":        aliasConflicts,
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

func aliasFinds(t *testing.T, s store.Store) {
	putTemplate(t, s, hutch.Template{Name: "a", Aliases: []string{"x", "y"}})
	putTemplate(t, s, hutch.Template{Name: "b"})
	for _, name := range []string{"a", "x", "y"} {
		if got, err := s.Template(t.Context(), name); err != nil || got.Name != "a" {
			t.Errorf("Template(%q): %q, %v; want a", name, got.Name, err)
		}
	}
	wantErr(t, "DeleteTemplate by an alias", s.DeleteTemplate(t.Context(), "x"), hutch.ErrNotFound)
	// Replaced: the aliases of before are free again.
	putTemplate(t, s, hutch.Template{Name: "a", Aliases: []string{"y", "z"}})
	_, err := s.Template(t.Context(), "x")
	wantErr(t, "Template by an alias of before", err, hutch.ErrNotFound)
	putTemplate(t, s, hutch.Template{Name: "b", Aliases: []string{"x"}})
	if err := s.DeleteTemplate(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Template(t.Context(), "z")
	wantErr(t, "Template by an alias of a deleted one", err, hutch.ErrNotFound)
	putTemplate(t, s, hutch.Template{Name: "z", Aliases: []string{"y"}})
}

func aliasConflicts(t *testing.T, s store.Store) {
	putTemplate(t, s, hutch.Template{Name: "a", Aliases: []string{"x"}})
	for what, tpl := range map[string]hutch.Template{
		"a name that is another's alias":  {Name: "x"},
		"an alias that is another's name": {Name: "b", Aliases: []string{"a"}},
		"an alias that is another's":      {Name: "b", Aliases: []string{"free", "x"}},
		"an alias that is its own name":   {Name: "b", Aliases: []string{"b"}},
		"an alias twice":                  {Name: "b", Aliases: []string{"c", "c"}},
	} {
		wantErr(t, "PutTemplate with "+what, s.PutTemplate(t.Context(), tpl), hutch.ErrConflict)
	}
	list, err := s.Templates(t.Context())
	if err != nil || len(list) != 1 {
		t.Errorf("after refused writes: %+v, %v; want a alone", list, err)
	}
	putTemplate(t, s, hutch.Template{Name: "b", Aliases: []string{"free"}}) // nothing of the refused ones is left
}
