package bench

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// Of a sandbox that could not be ended no time is booked as that of its end.
func TestCycleWhoseKillFails(t *testing.T) {
	killed := http.StatusNoContent
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete && killed == http.StatusNoContent:
			w.WriteHeader(killed)
		case r.Method == http.MethodDelete:
			w.WriteHeader(killed)
			_ = json.NewEncoder(w).Encode(api.Error{Error: "no", Code: "internal"})
		case strings.HasSuffix(r.URL.Path, "/exec"):
			_ = json.NewEncoder(w).Encode(api.ExecResult{Stdout: helloText})
		default:
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(api.Sandbox{ID: "i1"})
		}
	}))
	defer s.Close()
	c, err := client.New(s.URL, client.WithKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{http.StatusNoContent, http.StatusConflict} {
		killed = status
		k := &clock{us: map[string]int64{}}
		err := cycle(t.Context(), c, Settings{}, k)
		_, booked := k.us[MetricKill]
		if ok := status == http.StatusNoContent; (err == nil) != ok || booked != ok {
			t.Errorf("killed with %d: %v, booked: %v", status, err, booked)
		}
	}
}
