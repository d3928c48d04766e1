package template

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParsePip(t *testing.T) {
	got := parsePip(`
# a comment
[global]
index-url = https://index.example/simple
extra-index-url =
    https://one.example/simple
    https://two.example/simple
break-system-packages = true
Timeout: 7
[install]
find_links = /wheels
; another
[download]
proxy = http://not.example
`)
	want := map[string]string{
		"index-url": "https://index.example/simple", "extra-index-url": "https://one.example/simple https://two.example/simple",
		"timeout": "7", "find-links": "/wheels",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func FuzzParsePip(f *testing.F) {
	f.Add("[global]\nindex-url = x\n  y\n")
	f.Add("key = [\n[")
	f.Fuzz(func(t *testing.T, text string) {
		for key, value := range parsePip(text) {
			if _, known := pipKeys[key]; !known || strings.ContainsAny(value, "\r\n") {
				t.Errorf("%q = %q", key, value)
			}
		}
	})
}

func TestReadPip(t *testing.T) {
	root, home := t.TempDir(), t.TempDir()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PIP_") || slices.Contains(certVariables, name) || name == "NETRC" || name == "XDG_CONFIG_HOME" {
			t.Setenv(name, "")
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("HOME", home)
	file := func(name, text string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	ca, netrc := file(filepath.Join(root, "ca.pem"), "x"), file(filepath.Join(root, "netrc"), "x")
	file(filepath.Join(root, "etc/pip.conf"), "[global]\nindex-url = https://weak.example\nfind-links = "+root+" https://builder:secret@links.example/\n")
	own := file(filepath.Join(root, "own.conf"), "[install]\nindex-url = https://own.example\nretries = 3\n")
	t.Setenv("PIP_CONFIG_FILE", own)
	t.Setenv("PIP_RETRIES", "4")
	t.Setenv("SSL_CERT_FILE", ca)
	t.Setenv("NETRC", netrc)
	got, err := readPip(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PIP_FIND_LINKS=/run/build/pip0 https://builder:secret@links.example/", "PIP_INDEX_URL=https://own.example", "PIP_RETRIES=4",
		"SSL_CERT_FILE=/run/build/pip1", "NETRC=/run/build/pip2",
	}
	if !reflect.DeepEqual(got.env, want) {
		t.Errorf("environment %q\nwant        %q", got.env, want)
	}
	if want := []bind{{host: root, name: "pip0"}, {host: ca, name: "pip1"}, {host: netrc, name: "pip2"}}; !reflect.DeepEqual(got.binds, want) {
		t.Errorf("binds %+v\nwant  %+v", got.binds, want)
	}
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	if none, err := readPip(root); err != nil || none.identity == got.identity || slices.Contains(none.env, "PIP_INDEX_URL=https://own.example") {
		t.Errorf("without files: %+v, %v", none, err)
	}
	unpassworded := newPipSource(root, map[string]string{"find-links": "https://links.example/", "retries": "9"})
	if with := newPipSource(root, map[string]string{"find-links": "https://builder:secret@links.example/"}); with.identity != unpassworded.identity {
		t.Error("a password is in the identity")
	}
}

func TestBindScript(t *testing.T) {
	dir := t.TempDir()
	got := bindScript([]bind{{host: dir, name: "d"}, {host: "/etc/passwd", name: "f", writable: true}})
	want := "mount -t tmpfs -o mode=755 run \"$0/run\" && mkdir \"$0/run/build\" || exit 125\n" +
		"mkdir \"$0/run/build/d\" && mount --bind -o ro '" + dir + "' \"$0/run/build/d\" || exit 125\n" +
		"touch \"$0/run/build/f\" && mount --bind '/etc/passwd' \"$0/run/build/f\" || exit 125\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if q := quote(`it's`); q != `'it'\''s'` {
		t.Errorf("quoted %s", q)
	}
}
