package bench

import (
	"errors"
	"strings"
)

// The marks between which a page has its figures. What stands between them is written by
// [IntoPage] and by nobody else.
const (
	pageBegin = "<!-- figures: written by `hutch bench report` from the raw results -->"
	pageEnd   = "<!-- end of figures -->"
)

// IntoPage returns page with figures in the place between the marks.
func IntoPage(page, figures string) (string, error) {
	head, rest, ok := strings.Cut(page, pageBegin)
	_, tail, ok2 := strings.Cut(rest, pageEnd)
	if !ok || !ok2 {
		return "", errors.New("the page has no place for figures: put these two lines into it:\n" + pageBegin + "\n" + pageEnd)
	}
	return head + pageBegin + "\n\n" + strings.Trim(figures, "\n") + "\n\n" + pageEnd + tail, nil
}
