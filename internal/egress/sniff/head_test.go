package sniff

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestHead(t *testing.T) {
	tests := map[string]struct {
		b    string
		want Head // without Size and Body
		err  error
	}{
		"plain":                {"GET /a?b=c HTTP/1.1\r\nHost: A.example:8080\r\nX: y\r\n\r\n", Head{Method: "GET", Path: "/a?b=c", Host: "A.example:8080"}, nil},
		"absolute":             {"GET http://a.example/x HTTP/1.1\r\nHost: a.EXAMPLE\r\n\r\n", Head{Method: "GET", Path: "/x", Host: "a.example"}, nil},
		"absolute, no path":    {"GET HTTP://a.example?q HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{Method: "GET", Path: "/?q", Host: "a.example"}, nil},
		"old":                  {"GET / HTTP/1.0\r\n\r\n", Head{Method: "GET", Path: "/"}, nil},
		"old with host":        {"GET / HTTP/1.0\r\nhost:a.example\r\n\r\n", Head{Method: "GET", Path: "/", Host: "a.example"}, nil},
		"all of the server":    {"OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{Method: "OPTIONS", Path: "*", Host: "a.example"}, nil},
		"address":              {"GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n", Head{Method: "GET", Path: "/", Host: "[2001:db8::1]:80"}, nil},
		"websocket":            {"GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n", Head{Method: "GET", Path: "/ws", Host: "a.example", Upgrade: true}, nil},
		"upgrade, not asked":   {"GET /ws HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\n\r\n", Head{Method: "GET", Path: "/ws", Host: "a.example"}, nil},
		"no host":              {"GET / HTTP/1.1\r\n\r\n", Head{}, errNoHost},
		"two hosts":            {"GET / HTTP/1.1\r\nHost: a.example\r\nhost: b.example\r\n\r\n", Head{}, errTwoHosts},
		"the same host twice":  {"GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n", Head{}, errTwoHosts},
		"empty host":           {"GET / HTTP/1.1\r\nHost:\r\n\r\n", Head{}, errHost},
		"hosts in one":         {"GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n", Head{}, errHost},
		"host with user":       {"GET / HTTP/1.1\r\nHost: a.example@b.example\r\n\r\n", Head{}, errHost},
		"host with port 0":     {"GET / HTTP/1.1\r\nHost: a.example:0\r\n\r\n", Head{}, errHost},
		"host with bad port":   {"GET / HTTP/1.1\r\nHost: a.example:80x\r\n\r\n", Head{}, errHost},
		"target disagrees":     {"GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{}, errOtherHost},
		"target with user":     {"GET http://a.example@b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n", Head{}, errTarget},
		"target of https":      {"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{}, errTarget},
		"target without slash": {"GET a HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{}, errTarget},
		"connect":              {"CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n", Head{}, errConnect},
		"two lengths":          {"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Head{}, errTwoLengths},
		"length twice":         {"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", Head{}, errLength},
		"length as a list":     {"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3, 3\r\n\r\n", Head{}, errLength},
		"length with sign":     {"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: +3\r\n\r\n", Head{}, errLength},
		"length in hex":        {"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0x3\r\n\r\n", Head{}, errLength},
		"length with _":        {"POST / HTTP/1.1\r\nHost: a.example\r\nContent_Length: 3\r\n\r\n", Head{}, errField},
		"coding, other":        {"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Head{}, errCoding},
		"coding, odd":          {"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: xchunked\r\n\r\n", Head{}, errCoding},
		"coding twice":         {"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", Head{}, errCoding},
		"coding, old":          {"POST / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n", Head{}, errCoding},
		"space before colon":   {"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding : chunked\r\n\r\n", Head{}, errField},
		"vertical tab":         {"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: \vchunked\r\n\r\n", Head{}, errField},
		"folded":               {"GET / HTTP/1.1\r\nHost: a.example\r\nX: y\r\n z\r\n\r\n", Head{}, errFolded},
		"folded at once":       {"GET / HTTP/1.1\r\n Host: a.example\r\n\r\n", Head{}, errFolded},
		"bare LF":              {"GET / HTTP/1.1\nHost: a.example\n\n", Head{}, errLineEnd},
		"bare LF later":        {"GET / HTTP/1.1\r\nX: y\nHost: a.example\r\n\r\n", Head{}, errLineEnd},
		"bare CR":              {"GET / HTTP/1.1\r\nX: y\rHost: a.example\r\nHost: b.example\r\n\r\n", Head{}, errLineEnd},
		"NUL":                  {"GET / HTTP/1.1\r\nHost: a.example\r\nX: \x00\r\n\r\n", Head{}, errLineEnd},
		"empty line first":     {"\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{}, errRequestLine},
		"two spaces":           {"GET  / HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{}, errRequestLine},
		"a space in path":      {"GET /a b HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{}, errRequestLine},
		"tab":                  {"GET\t/ HTTP/1.1\r\nHost: a.example\r\n\r\n", Head{}, errRequestLine},
		"version":              {"GET / HTTP/1.2\r\nHost: a.example\r\n\r\n", Head{}, errVersion},
		"hop by hop":           {"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close, host\r\n\r\n", Head{}, errHopByHop},
		"h2c":                  {"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n", Head{}, errUpgrade},
		"upgrade with body":    {"POST / HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\n", Head{}, errUpgradeBody},
		"many fields":          {"GET / HTTP/1.1\r\nHost: a.example\r\n" + strings.Repeat("X: y\r\n", maxFields) + "\r\n", Head{}, errFields},
		"long":                 {"GET / HTTP/1.1\r\nHost: a.example\r\nX: " + strings.Repeat("y", MaxHead) + "\r\n\r\n", Head{}, errHeadLong},
		"long without end":     {"GET /" + strings.Repeat("y", MaxHead), Head{}, errHeadLong},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h, need, err := ParseHead([]byte(test.b))
			if !errors.Is(err, test.err) || need != 0 {
				t.Fatalf("got %+v, need %d, %v; want %v", h, need, err, test.err)
			}
			if err == nil && h.Size != len(test.b) {
				t.Errorf("size %d of %d", h.Size, len(test.b))
			}
			h.Size, h.Body = 0, Body{}
			if err == nil && (h.Method != test.want.Method || h.Path != test.want.Path || h.Host != test.want.Host || h.Upgrade != test.want.Upgrade) {
				t.Errorf("got %+v, want %+v", h, test.want)
			}
		})
	}
}

// What follows a body is the next request, wherever the pieces end.
func TestBody(t *testing.T) {
	const next = "GET / HTTP/1.1\r\n"
	head := func(fields string) string { return "POST / HTTP/1.1\r\nHost: a.example\r\n" + fields + "\r\n" }
	tests := map[string]struct {
		head, body string
		err        error
	}{
		"none":             {head(""), "", nil},
		"length":           {head("Content-Length: 5\r\n"), "hello", nil},
		"length 0":         {head("Content-Length: 0\r\n"), "", nil},
		"chunks":           {head("Transfer-Encoding: Chunked\r\n"), "5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n", nil},
		"chunks, trailer":  {head("Transfer-Encoding: chunked\r\n"), "0\r\nX: y\r\nZ: 1\r\n\r\n", nil},
		"chunks, CRLF in":  {head("Transfer-Encoding: chunked\r\n"), "4\r\n\r\n\r\n\r\n0\r\n\r\n", nil},
		"size, sign":       {head("Transfer-Encoding: chunked\r\n"), "+5\r\nhello\r\n", errChunk},
		"size, prefix":     {head("Transfer-Encoding: chunked\r\n"), "0x5\r\nhello\r\n", errChunk},
		"size, empty":      {head("Transfer-Encoding: chunked\r\n"), "\r\nhello\r\n", errChunk},
		"size, long":       {head("Transfer-Encoding: chunked\r\n"), "0000000000000005\r\nhello\r\n", errChunk},
		"size, endless":    {head("Transfer-Encoding: chunked\r\n"), strings.Repeat("0", 100), errChunk},
		"extension":        {head("Transfer-Encoding: chunked\r\n"), "5;a=b\r\nhello\r\n", errChunk},
		"bare LF":          {head("Transfer-Encoding: chunked\r\n"), "5\nhello\r\n", errChunk},
		"no line end":      {head("Transfer-Encoding: chunked\r\n"), "5\r\nhelloX\r\n", errChunk},
		"trailer, length":  {head("Transfer-Encoding: chunked\r\n"), "0\r\nContent-Length: 5\r\n\r\n", errTrailer},
		"trailer, host":    {head("Transfer-Encoding: chunked\r\n"), "0\r\nHost: b.example\r\n\r\n", errTrailer},
		"trailer, folded":  {head("Transfer-Encoding: chunked\r\n"), "0\r\nX: y\r\n z\r\n\r\n", errTrailer},
		"trailer, endless": {head("Transfer-Encoding: chunked\r\n"), "0\r\n" + strings.Repeat("X: y\r\n", maxTrailer), errTrailer},
		"trailer, bare LF": {head("Transfer-Encoding: chunked\r\n"), "0\r\nX: y\n\r\n", errTrailer},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			all := []byte(test.body)
			if test.err == nil {
				all = append(all, next...)
			}
			for _, size := range []int{1, 2, 7, len(all)} {
				h, _, err := ParseHead([]byte(test.head))
				if err != nil {
					t.Fatal(err)
				}
				taken := 0
				for part := range slices.Chunk(all, size) {
					if h.Body.Empty() {
						break
					}
					var n int
					if n, err = h.Body.Take(part); err != nil {
						break
					}
					taken += n
					if n < len(part) && !h.Body.Empty() {
						t.Fatalf("in pieces of %d: %d of %d bytes taken, and it is not over", size, n, len(part))
					}
				}
				if !errors.Is(err, test.err) || err == nil && (taken != len(test.body) || !h.Body.Empty()) {
					t.Errorf("in pieces of %d: took %d of %d, over %v, %v", size, taken, len(test.body), h.Body.Empty(), err)
				}
			}
		})
	}
}

func TestSplitHost(t *testing.T) {
	for in, want := range map[string]struct {
		host string
		port uint16
	}{"a.example": {"a.example", 0}, "a.example:81": {"a.example", 81}, "[::1]": {"[::1]", 0}, "[::1]:8080": {"[::1]", 8080}} {
		if host, port := SplitHost(in); host != want.host || port != want.port {
			t.Errorf("%s: %s, %d", in, host, port)
		}
	}
}
