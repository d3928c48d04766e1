package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// TestExecSandboxOutlivesTheLimit: the sandbox that the commands run in lives as long as they
// may take together.
func TestExecSandboxOutlivesTheLimit(t *testing.T) {
	u, err := url.Parse(httpapitest.New().Server(t, httpapi.Config{}).URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	var last api.CreateSandbox
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/sandboxes" && r.Method == http.MethodPost {
			b, err := io.ReadAll(r.Body)
			if err == nil {
				err = json.Unmarshal(b, &last)
			}
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(b))
		}
		proxy.ServeHTTP(w, r)
	}))
	defer s.Close()
	c, err := client.New(s.URL, client.WithKey(httpapitest.AdminKey), client.WithRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	const limit = 20 * time.Minute
	if _, err := Exec(t.Context(), Settings{N: 1, Parallel: 1, Limit: limit, Template: "base"}, c, nil, nil); err != nil {
		t.Fatal(err)
	}
	if last.TTLSeconds == nil || *last.TTLSeconds < limit.Seconds() {
		t.Errorf("it was asked for with %+v, while the commands may take %v", last, limit)
	}
}

// stubborn is a subject whose output is in a file that cannot be removed.
type stubborn struct{ size int }

func (stubborn) result(context.Context, []string) (int, error) { return 1, nil }

func (s stubborn) stream(_ context.Context, _ []string, sink func([]byte)) (int, string, error) {
	sink(make([]byte, s.size))
	return 0, "/tmp/out", nil
}

func (stubborn) settle(context.Context) error { return nil }

func TestTransferRunSaysWhyItsFileStays(t *testing.T) {
	err := transferRun(t.Context(), stubborn{size: 7}, 7, &clock{us: map[string]int64{}})
	if err == nil || err.Error() != "remove the output file: exit code 1" {
		t.Errorf("got %v", err)
	}
}

func TestReportWithoutRunsSaysSo(t *testing.T) {
	if got := (&Report{}).failures(); got != "There are no runs." {
		t.Errorf("got %q", got)
	}
}
