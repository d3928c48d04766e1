package bench

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"hutch.dev/hutch/client"
)

// With no sandbox at all there is nothing to divide by: the benchmark ends, and its report has
// what went wrong.
func TestACrowdOfNobodyIsAnError(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"code":"no_capacity","message":"full"}`, http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	api, err := client.New(srv.URL, client.WithKey("e2b_0"), client.WithRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	b := &book{}
	w := gather(Settings{Template: "base", Limit: time.Minute}, api)
	err = w.fill(t.Context(), 3, b.page("filling", SubjectHutch, 0), func() { t.Error("one was made") })
	if err == nil || len(b.faults) != 3 {
		t.Errorf("got %v and %+v", err, b.faults)
	}
}
