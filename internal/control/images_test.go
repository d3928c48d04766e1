package control

import (
	"context"
	"log/slog"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// shifting is records that change while they are looked through: of templates it has one before
// the living are looked at, and another afterwards.
type shifting struct {
	store.Store

	looked bool
}

func (s *shifting) Templates(context.Context) ([]hutch.Template, error) {
	if s.looked {
		return []hutch.Template{{Name: "after", Image: "after"}}, nil
	}
	return []hutch.Template{{Name: "before", Image: "before"}}, nil
}

func (s *shifting) Sandboxes(context.Context, store.SandboxFilter, store.Page) ([]hutch.Sandbox, string, error) {
	s.looked = true
	return []hutch.Sandbox{{ID: "a", Image: "living"}}, "", nil
}

func (s *shifting) SandboxChanges() uint64 { return 0 }

// sieve notes what is to be kept.
type sieve map[string]bool

func (s sieve) Collect(_ context.Context, keep func(string) bool) (int, error) {
	for image := range s {
		s[image] = keep(image)
	}
	return 0, nil
}

// A sandbox that is made from a template which is deleted at once, all while the records are
// being looked through, keeps its image.
func TestImagesOfWhatIsMadeMeanwhileAreKept(t *testing.T) {
	images := sieve{"before": false, "living": false, "after": false, "none": true}
	c := &Control{cfg: Config{Images: images}, store: &shifting{}, log: slog.New(slog.DiscardHandler)}
	if err := c.collectImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	for image, kept := range images {
		if kept != (image != "none") {
			t.Errorf("%s is kept: %v", image, kept)
		}
	}
}
