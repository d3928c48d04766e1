package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// UsageFilter says which usage to report; zero fields do not filter.
type UsageFilter struct {
	Sandbox hutch.SandboxID
	From    time.Time // intervals are cut at From and To
	To      time.Time
	By      string // "interval" (default), "sandbox" or "project": an entry for each
	Cursor  string // from the page before
	Limit   int    // entries of a page, at most 1000
}

func (f UsageFilter) query() url.Values {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	at := func(name string, t time.Time) {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	set("sandbox_id", string(f.Sandbox))
	set("by", f.By)
	set("cursor", f.Cursor)
	at("from", f.From)
	at("to", f.To)
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// UsageReport returns one page of what the project's sandboxes used, with the sum of all
// pages, and the cursor of the next page, empty on the last.
func (c *Client) UsageReport(ctx context.Context, f UsageFilter) (report api.UsageReport, next string, err error) {
	header, err := c.retry(ctx, get(pathOf("usage"), f.query()), func(res *http.Response) error {
		report = api.UsageReport{}
		return decodeAnswer(res, &report)
	})
	if err != nil {
		return api.UsageReport{}, "", err
	}
	return report, header.Get(api.HeaderNextCursor), nil
}
