package unpack_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"strings"
	"testing"

	"hutch.dev/hutch"
	it "hutch.dev/hutch/internal/template/imagetest"
)

// model is what a tree should hold, as listing says it. It is written for clarity: a
// layer's whiteouts first, all of them against what was below, then its entries.
type model map[string]string

// drop removes what has a name, with all below it.
func (m model) drop(name string) {
	for p := range m {
		if p == name || name == "." || strings.HasPrefix(p, name+"/") {
			delete(m, p)
		}
	}
}

func (m model) apply(layer []it.Entry) {
	for _, e := range layer {
		dir, base := path.Split(e.Name)
		dir = path.Clean(dir)
		gone, hides := strings.CutPrefix(base, ".wh.")
		switch {
		case base == ".wh..wh..opq":
			was, had := m[dir]
			m.drop(dir)
			if had {
				m[dir] = was
			}
		case hides:
			m.drop(path.Join(dir, gone))
		}
	}
	for _, e := range layer {
		name := strings.TrimSuffix(e.Name, "/")
		if strings.HasPrefix(path.Base(name), ".wh.") {
			continue
		}
		for p := path.Dir(name); p != "."; p = path.Dir(p) {
			m[p] = "/"
		}
		if strings.HasSuffix(e.Name, "/") {
			m[name] = "/"
			continue
		}
		m.drop(name)
		m[name] = "=" + e.Content
	}
}

// randomLayer makes entries and whiteouts over a few names, in any order.
func randomLayer(r *rand.Rand, layer int) []it.Entry {
	name := func() string {
		parts := make([]string, 1+r.IntN(3))
		for i := range parts {
			parts[i] = string(rune('a' + r.IntN(3)))
		}
		return strings.Join(parts, "/")
	}
	var entries []it.Entry
	for i := range 1 + r.IntN(8) {
		switch n := name(); r.IntN(6) {
		case 0, 1, 2:
			if r.IntN(10) > 0 { // else it may be where others have a directory
				n += "/" + string(rune('x'+r.IntN(3)))
			}
			entries = append(entries, it.File(n, fmt.Sprintf("%d.%d", layer, i)))
		case 3:
			entries = append(entries, it.Dir(n, 0o755))
		case 4:
			if r.IntN(2) == 0 {
				n += "/" + string(rune('x'+r.IntN(3)))
			}
			entries = append(entries, it.Gone(path.Dir(n), path.Base(n)))
		case 5:
			entries = append(entries, it.Opaque(n))
		}
	}
	return entries
}

// TestAgainstTheModel unpacks random images. Those with a layer that is out of order (a
// file on the way to another, which only a later whiteout would remove) may be refused.
func TestAgainstTheModel(t *testing.T) {
	const images = 300
	same := 0
	for seed := range uint64(images) {
		r := rand.New(rand.NewPCG(seed, 1))
		tree, dir := open(t, roomy)
		want := model{}
		var layers [][]it.Entry
		var err error
		for i := range 1 + r.IntN(4) {
			layer := randomLayer(r, i)
			layers = append(layers, layer)
			if err = apply(t, tree, layer); err != nil {
				break
			}
			want.apply(layer)
		}
		if err != nil {
			if !errors.Is(err, hutch.ErrBadRequest) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			continue
		}
		same++
		if got := listing(t, dir); !reflect.DeepEqual(got, names(want)) {
			for _, l := range layers {
				t.Logf("layer %+v", l)
			}
			t.Fatalf("seed %d: got  %v\nwant %v", seed, got, want)
		}
	}
	if same < images/2 {
		t.Errorf("only %d of %d images were unpacked: the test says little", same, images)
	}
}
