package credential

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

const (
	token = "0123456789abcdef0123456789abcdef01234567"
	key   = "e2b_" + token
)

func TestStrip(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/p?a=1;access_token="+key+"&b=%26&hutch_token=x&access_token=its+own&%61ccess_token="+key, nil)
	r.Header = http.Header{
		"X-Api-Key":                {key, "its own"},
		"X-Access-Token":           {"bad", token},
		"E2b-Traffic-Access-Token": {"whatever"},
		"Authorization":            {"Bearer " + key, "Basic " + key, "bearer its-own"},
		"Cookie":                   {"a=1; hutch_token=" + token, "b=2"},
		"X-Other":                  {key},
	}
	Strip(r, func(s string) bool { return s == token })
	want := http.Header{
		"X-Api-Key":      {"its own"},
		"X-Access-Token": {"bad"},
		"Authorization":  {"Basic " + key, "bearer its-own"},
		"Cookie":         {"a=1; b=2"},
		"X-Other":        {key},
	}
	for name := range r.Header {
		if !slices.Equal(r.Header[name], want[name]) {
			t.Errorf("%s: %q, want %q", name, r.Header[name], want[name])
		}
		delete(want, name)
	}
	if len(want) != 0 {
		t.Errorf("missing: %v", want)
	}
	if r.URL.RawQuery != "a=1;b=%26&access_token=its+own" {
		t.Errorf("query %q", r.URL.RawQuery)
	}
}

func TestForms(t *testing.T) {
	for s, want := range map[string][2]bool{ // is a key, is a token
		key: {true, false}, "pds_" + token: {true, false}, token: {false, true}, "": {false, false}, "e2b_": {false, false},
		strings.ToUpper(token): {false, false}, token + "0": {false, false}, "xyz_" + token: {false, false},
	} {
		if IsKey(s) != want[0] || IsToken(s) != want[1] {
			t.Errorf("%q: key %v, token %v", s, IsKey(s), IsToken(s))
		}
	}
}

// Whatever a query is, only parameters go, and a key never stays.
func FuzzDropParams(f *testing.F) {
	f.Add("a=1&access_token=" + key + ";b")
	f.Add("&&;;%zz=%&access_token=" + key)
	f.Fuzz(func(t *testing.T, raw string) {
		got := dropParams(raw, func(name, value string) bool { return name == ParamKey && IsKey(value) })
		if len(got) > len(raw) || strings.Contains("&"+strings.ReplaceAll(got, ";", "&")+"&", "&access_token="+key+"&") {
			t.Errorf("%q became %q", raw, got)
		}
	})
}
