package bench

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"hutch.dev/hutch/client"
)

// TestTerminal: a key is sent as a binary frame and its echo awaited; another echo,
// and a terminal that ends, are errors.
func TestTerminal(t *testing.T) {
	tests := map[string]struct {
		ready string // the program's first output
		echo  func(key []byte) (websocket.MessageType, []byte)
		open  string // error of opening it; empty: none
		press string // and of pressing a key
	}{
		"good":       {"ready", func(key []byte) (websocket.MessageType, []byte) { return websocket.MessageBinary, key }, "", ""},
		"other echo": {"ready", func([]byte) (websocket.MessageType, []byte) { return websocket.MessageBinary, []byte("^?") }, "", "the echo of"},
		"ended":      {"ready", func([]byte) (websocket.MessageType, []byte) { return websocket.MessageText, []byte(`{"exit":1}`) }, "", "exit code 1"},
		"not there":  {"sh: not found", nil, "it printed", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/sandboxes/i1/exec/pty" || r.URL.Query().Get("cmd") != echoCmd || r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("asked for %s", r.URL)
				}
				c, err := websocket.Accept(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = c.CloseNow() }()
				_ = c.Write(r.Context(), websocket.MessageBinary, []byte(tt.ready))
				for {
					kind, key, err := c.Read(r.Context())
					if err != nil {
						return
					}
					if kind != websocket.MessageBinary || len(key) != 1 {
						t.Errorf("a frame of kind %v: %q", kind, key)
					}
					kind, echo := tt.echo(key)
					_ = c.Write(r.Context(), kind, echo)
				}
			}))
			defer s.Close()
			api, err := client.New(s.URL, client.WithKey("secret"))
			if err != nil {
				t.Fatal(err)
			}
			term, err := openTerminal(t.Context(), api, "i1")
			if !matches(err, tt.open) {
				t.Fatalf("open: %v, want %q", err, tt.open)
			}
			if err != nil {
				return
			}
			defer term.close()
			c := &clock{us: map[string]int64{}}
			if err := term.press(t.Context(), c); !matches(err, tt.press) {
				t.Errorf("press: %v, want %q", err, tt.press)
			}
			if err := term.press(t.Context(), c); tt.press != "" && !matches(err, "closed after an earlier key") {
				t.Errorf("the next key: %v, want the terminal closed", err)
			}
			if _, booked := c.us[MetricEcho]; tt.press == "" && !booked {
				t.Error("no time was booked")
			}
		})
	}
}

func matches(err error, want string) bool {
	if want == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), want)
}
