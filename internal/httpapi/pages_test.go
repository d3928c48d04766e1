package httpapi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestCommandsAreListedByPages(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	at := "/v1/sandboxes/" + b.sandbox()
	for i := range 5 {
		b.do("POST", at+"/exec", fmt.Sprintf(`{"cmd": "echo %d"}`, i)).want(200)
	}
	b.do("POST", at+"/exec", `{"cmd": "sleep", "background": true}`).want(202)
	var got []string
	next := at + "/execs?limit=4"
	for next != "" {
		a := b.do("GET", next, "").want(200)
		for _, x := range into[[]api.Exec](a) {
			got = append(got, x.Cmd)
		}
		link, _, _ := strings.Cut(strings.TrimPrefix(a.header.Get("Link"), "<"), ">")
		if cursor := a.header.Get(api.HeaderNextCursor); (cursor == "") != (link == "") || !strings.Contains(link, cursor) {
			t.Errorf("the next page is %q, the cursor %q", link, cursor)
		}
		next = link
	}
	if strings.Join(got, " ") != "sleep echo 4 echo 3 echo 2 echo 1 echo 0" {
		t.Errorf("pages hold %v", got)
	}
	if running := into[[]api.Exec](b.do("GET", at+"/execs?running=1", "").want(200)); len(running) != 1 || running[0].Cmd != "sleep" {
		t.Errorf("running: %+v", running)
	}
	b.do("GET", at+"/execs?cursor=nowhere", "").wantError(400, "bad_request", "cursor")
}

func TestAPageOfADirectoryIsNotEmptyByRequest(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	dir := b.fs() + "/dir?path=/"
	for _, limit := range []string{"0", "10001"} {
		b.do("GET", dir+"&limit="+limit, "").wantError(400, "bad_request", "limit")
	}
	b.do("GET", dir+"&limit=1", "").want(200)
}

func TestSeriesKeepToTheirBounds(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	at := httpapitest.Epoch.Truncate(time.Minute)
	var samples []hutch.Sample
	for i := range 12 {
		samples = append(samples, hutch.Sample{At: at.Add(time.Duration(i) * 5 * time.Second), CPUPercent: 1, Memory: int64(i)})
	}
	b.SetSamples(samples)
	for _, path := range []string{"sandbox/" + sb, "overview"} {
		for _, c := range []struct {
			from, to time.Duration
			step     string
			want     string // the memory of each step
		}{
			{0, time.Minute, "5s", "[0 1 2 3 4 5 6 7 8 9 10 11]"},
			{20 * time.Second, time.Minute, "5s", "[4 5 6 7 8 9 10 11]"},
			{0, 20 * time.Second, "5s", "[0 1 2 3 4]"},
			{20 * time.Second, 30 * time.Second, "10s", "[4 6]"},
		} {
			query := fmt.Sprintf("?from=%d&to=%s&step=%s", at.Add(c.from).Unix(), at.Add(c.to).Format(time.RFC3339), c.step)
			var got []int64
			for _, p := range into[api.Series](b.do("GET", "/v1/metrics/"+path+query, "").want(200)).Series {
				got = append(got, p.MemoryBytes)
			}
			if fmt.Sprint(got) != c.want {
				t.Errorf("%s%s: %v, want %s", path, query, got, c.want)
			}
		}
	}
}
